"""What the processes of a group must have in common, and what the leader decides for all."""

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib.version
import numpy as np

from jaxengine import __version__
from jaxengine.architecture.parameters import Parameter, parameter_table
from jaxengine.cache.limits import Limits
from jaxengine.executor.executable_store import code_digest, program_flags
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.option import flag
from jaxengine.options.table import EngineOptions
from jaxengine.startup.setup import Setup

ROWS = 2  # of each parameter that are compared


def hello(hosts: int) -> dict[str, Any]:
    """What two processes compare before anything else. The same engine makes the same programs of the same sizes."""
    return {
        "--nnodes": hosts,
        "version": __version__,
        "source": code_digest()[:16],
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "a flag": program_flags(),
    }


def welcome(port: int, options: EngineOptions, adapters: Sequence[NamedAdapter]) -> dict[str, Any]:
    """What a leader was started with: followers take it over, so their own options are only where to find what.

    Args:
        port: of the coordinator of JAX's processes.
    """
    names = [row.name for row in dataclasses.fields(EngineOptions)]
    return {
        "port": port,
        "options": {name: getattr(options, name) for name in names},
        "adapters": [[each.name, each.path] for each in adapters],
    }


def options_of(welcome: Mapping[str, Any]) -> EngineOptions:
    """The leader's options."""
    return EngineOptions(**welcome["options"])


def overruled(own: EngineOptions, leaders: EngineOptions) -> list[str]:
    """A line for each option that was given here and is another one at the leader, which counts."""
    rows = [row for row in dataclasses.fields(EngineOptions) if getattr(own, row.name) != row.default]
    return [
        f"{flag(row.name)} {getattr(own, row.name)} has no effect here: on machine 0 it is {getattr(leaders, row.name)}"
        for row in rows
        if getattr(own, row.name) != getattr(leaders, row.name)
    ]


def adapters_of(welcome: Mapping[str, Any]) -> list[NamedAdapter]:
    """The adapters that the leader serves from the start."""
    return [NamedAdapter(*each) for each in welcome["adapters"]]


def facts(setup: Setup) -> dict[str, Any]:
    """What must be the same everywhere once a process has opened the model and met its devices."""
    return {
        "the kind of device": repr(setup.device),
        "the number of devices": setup.mesh.size,
        "the model": _digest(setup.spec),
        "a weight": weights_digest(parameter_table(setup.spec), setup.source.read),
        "a weight of what drafts": _drafter_digest(setup),
        "a type": f"{setup.dtype}, cache {setup.cache_dtype}, attention by {setup.attention}, made {setup.quantize}",
        "a format": _digest(sorted(setup.formats.items())),
        "the room for adapters": _digest(setup.adapters.shapes),
        "what drafts": _digest((setup.speculation, setup.drafter)),
    }


def weights_digest(table: Mapping[str, Parameter], read: Callable[[str, tuple[slice, ...]], np.ndarray]) -> str:
    """Of a few rows of every parameter, other ones of each: that tells the weights of one model from those of another
    of the same shape, of another revision, or with an adapter merged.
    """
    checksum = 0
    for name, parameter in sorted(table.items()):
        *sizes, _ = parameter.shape
        drawn = np.random.default_rng(zlib.crc32(name.encode()))
        for _ in range(ROWS if sizes else 1):
            at = [int(drawn.integers(size)) for size in sizes]
            row = read(name, (*(slice(each, each + 1) for each in at), slice(0, parameter.shape[-1])))
            checksum = zlib.crc32(np.ascontiguousarray(row, np.float32).tobytes(), checksum)
    return f"{checksum:08x}"


def _drafter_digest(setup: Setup) -> str:
    if setup.drafter is None or setup.drafter_source is None:
        return ""
    return weights_digest(setup.drafter.parameters(), setup.drafter_source.read)


def plan(limits: Limits, pages: int, pooling: str) -> dict[str, Any]:
    """The sizes of an engine."""
    return {"limits": dataclasses.asdict(limits), "pages": pages, "pooling": pooling}


def limits_of(plan: Mapping[str, Any]) -> Limits:
    """Those of `plan`."""
    values: Any = plan["limits"].items()
    sizes: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in values}
    return Limits(**sizes)


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
