"""JAX's persistent compilation cache, and the count of compiles that should not have happened."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import jax

from jaxengine import __version__

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
HIT_EVENT = "/jax/compilation_cache/cache_hits"
KEPT_EVENT = "/jax/compilation_cache/cache_misses"  # sent when a new executable is written to the cache


def compile_cache_in(root: Path) -> Path:
    """The directory of this version's cache. Beside an old cache a new `ExecutableStore` would stay empty."""
    return root / "compiled" / __version__


def enable_compile_cache(directory: Path) -> None:
    """Keep every executable under `directory` (made private): the second start compiles nothing anew."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CompileCounter:
    """Counts backend compiles of this process, by JAX's own monitoring events; those of `expected` threads apart."""

    def __init__(self) -> None:
        self.unexpected = 0
        self._lock = Lock()
        self._thread = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen_to_cache)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Compiles of this thread are meant to happen."""
        self._thread.expected, self._thread.hit, self._thread.new = True, False, False
        try:
            yield
        finally:
            self._thread.expected = False

    @property
    def hit(self) -> bool:
        """Whether a cache had what this thread last expected."""
        return getattr(self._thread, "hit", False)

    @property
    def new(self) -> bool:
        """Whether what this thread last expected was compiled, and not found in a cache of this process or on disk."""
        if jax.process_index() != 0:  # which JAX has keep nothing, and tells nothing of it
            return not self.hit
        return getattr(self._thread, "new", False)

    def found(self) -> None:
        """A cache other than JAX's has what this thread expects."""
        self._thread.hit = True

    def _listen_to_cache(self, event: str, **_: str | int) -> None:
        if event == HIT_EVENT:
            self.found()
        if event == KEPT_EVENT:
            self._thread.new = True

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT and not getattr(self._thread, "expected", False):
            with self._lock:
                self.unexpected += 1


COMPILES = CompileCounter()
