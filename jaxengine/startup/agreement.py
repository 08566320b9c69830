"""What the processes of a group must have in common, and what the leader decides for all."""

import dataclasses
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jaxlib.version
import numpy as np

from jaxengine import __version__
from jaxengine.architecture.parameters import parameter_table
from jaxengine.cache.limits import Limits
from jaxengine.executor.executable_store import code_digest
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.table import EngineOptions
from jaxengine.request.interface import OpenModel
from jaxengine.startup.setup import Setup

LOOKED_AT = 16  # parameters of which a row is compared


def hello(hosts: int) -> dict[str, Any]:
    """What two processes compare before anything else. The same engine makes the same programs of the same sizes."""
    return {
        "--nnodes": hosts,
        "version": __version__,
        "source": code_digest()[:16],
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
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


def adapters_of(welcome: Mapping[str, Any]) -> list[NamedAdapter]:
    """The adapters that the leader serves from the start."""
    return [NamedAdapter(*each) for each in welcome["adapters"]]


def facts(setup: Setup, model: OpenModel) -> dict[str, Any]:
    """What must be the same everywhere once a process has opened the model and met its devices."""
    return {
        "the kind of device": repr(setup.device),
        "the number of devices": setup.mesh.size,
        "the model": _digest(setup.spec),
        "a weight": weights_digest(model),
        "a type": f"{setup.dtype}, cache {setup.cache_dtype}, attention by {setup.attention}, made {setup.quantize}",
        "a format": _digest(sorted(setup.formats.items())),
        "the room for adapters": _digest(setup.adapters.shapes),
        "what drafts": _digest((setup.speculation, setup.drafter)),
    }


def weights_digest(model: OpenModel) -> str:
    """Of a row of some parameters: enough to tell one model's weights from those of another of the same shape."""
    table = parameter_table(model.source.spec)
    names = sorted(table)[:: max(1, len(table) // LOOKED_AT)]
    checksum = 0
    for name in names:
        *rows, _ = table[name].shape
        row = model.source.read(name, (*(slice(0, 1) for _ in rows), slice(None)))
        checksum = zlib.crc32(np.ascontiguousarray(row, np.float32).tobytes(), checksum)
    return f"{checksum:08x}"


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
