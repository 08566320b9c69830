"""The executables of tests' engines: each is built when it is first called, and once for all engines of a process.

An engine has 16 and more of them. To trace and lower one takes 0.1 to 0.5 s of a core, even where its compiled form is
cached; most tests call half of them, and those that sample are the same for most models. What an engine does depends on
neither: `in` says what it would if all had been built before the first step, and two engines share what JAX would have
compiled from equal arguments of one function. `load(at_once=True)` does without.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import pytest

from jaxengine.executor.compile_process import CompileProcess
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executables import Compiled, Executables, Progress

MOST_KEPT = 100  # of about 100 memory maps each, see tests/conftest.py

_kept: OrderedDict[Hashable, Compiled] = OrderedDict()  # the one used last is the last


@contextmanager
def shared_executables() -> Iterator[None]:
    """Of the engines that are loaded meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxengine.executor.compiler.Executables", OnDemand)
        patch.setattr("jaxengine.startup.setup.Compiler", SharingCompiler)
        yield


class OnDemand(Executables):
    """As `Executables`; `finish` promises the rest. A name that nobody waited for is still missing."""

    def __init__(
        self,
        jobs: Mapping[Hashable, Callable[[], Compiled]],
        essential: Sequence[Hashable],
        progress: Progress,
        on_built: Callable[[Hashable], None] = lambda _: None,
    ) -> None:
        super().__init__(jobs, (), progress, on_built)
        self._promised = set(essential)

    def __getitem__(self, name: Hashable) -> Compiled:
        if name in self._promised and name not in self._built:
            self._build(name)
        return self._built[name]

    def __contains__(self, name: Hashable) -> bool:
        return name in self._promised

    @property
    def built(self) -> list[Hashable]:
        return [name for name in self._jobs if name in self._promised]

    def build_rest(self, compile_process: CompileProcess | None = None) -> None:
        assert compile_process is None

    def finish(self) -> None:
        self._promised.update(self._jobs)

    def close(self) -> None:
        """Nothing is being compiled."""


class ToLower(NamedTuple):
    key: Hashable  # None: not to be shared
    lower: Callable[[], Any]


class SharingCompiler(Compiler):
    """Lowers and compiles only what no engine has compiled yet."""

    def _lower(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], donate: tuple[int, ...], returns: Any
    ) -> ToLower:
        decides = (arguments, returns)
        key = _key(function, decides, donate, self.mesh)
        return ToLower(key, partial(super()._lower, function, arguments, donate, returns))

    def compile(self, lowered: ToLower) -> Compiled:
        if lowered.key is None:
            return super().compile(lowered.lower())
        if lowered.key not in _kept:
            _kept[lowered.key] = super().compile(lowered.lower())
        _kept.move_to_end(lowered.key)
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
        return _kept[lowered.key]


def _key(function: Callable[..., Any], shapes: Any, *others: Hashable) -> Hashable:
    """All on which a compiled function depends, by value; None where part of it has none."""
    whole = (function.func, function.args) if isinstance(function, partial) else (function, ())
    if "<locals>" in getattr(whole[0], "__qualname__", ""):
        return None  # what it closes over is not seen
    leaves, structure = jax.tree.flatten(shapes)
    key = (*whole, structure, *leaves, *others)
    try:
        hash(key)
    except TypeError:
        return None
    return key
