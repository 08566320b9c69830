"""Scales of an 8-bit cache, as a checkpoint was calibrated: one for each layer's keys, and one for its values.

The scale multiplies what the cache holds. Each calibration tool has names of its own, below each layer. Some tools also
store scales of queries and of attention weights. Those are ignored, because both stay in full precision here. Keys or
values without a scale have 1.
"""

import math
import re
from collections.abc import Iterator

import numpy as np

from convert.errors import CheckpointError
from convert.formats.tensors import Tensors
from convert.mapping.composition import FLOATING

SPELLINGS = re.compile(
    r"\.(?P<layer>\d+)\.[a-z_.]+\."
    r"((?P<half>k|v|kv)_scale"  # vLLM's, ModelOpt's below k_proj and v_proj; kv: one for both, AutoFP8's first
    r"|(?P<projection>k|v)_proj\.output_scale)$"  # compressed-tensors' and Quark's
)
UNUSED = (r"\.q_scale$", r"\.q_proj\.output_scale$", r"\.prob(_output)?_scale$")
HALVES = {"k": (0,), "v": (1,), "kv": (0, 1)}
PATTERNS = (SPELLINGS.pattern, *UNUSED)  # names of tensors that are no weights


def cache_scales(tensors: Tensors, layers: int) -> tuple[tuple[float, float], ...]:
    """The scales of keys and values of each of `layers` layers; () if there are none.

    Raises:
        CheckpointError: a scale is not one positive, finite number, or is of a layer that the model does not have.
    """
    scales, found = np.ones((layers, 2)), False
    for name, layer, half in _named(tensors):
        if layer >= layers:
            raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} is of none of the {layers} layers")
        scales[layer, HALVES[half]] = _number(tensors, name)
        found = True
    return tuple((float(key), float(value)) for key, value in scales) if found else ()


def _named(tensors: Tensors) -> Iterator[tuple[str, int, str]]:
    """Tensor, layer and half of each scale. Scales of both halves come first: that of a single half replaces them."""
    matches = [(name, match) for name in tensors if (match := SPELLINGS.search(name))]
    found = [(name, int(match["layer"]), match["half"] or match["projection"]) for name, match in matches]
    return iter(sorted(found, key=lambda each: each[2] != "kv"))


def _number(tensors: Tensors, name: str) -> float:
    where = f"{tensors.where(name)}: tensor {name!r}"
    if math.prod(tensors.shape(name)) != 1 or tensors.dtype(name) not in FLOATING:
        shape = list(tensors.shape(name))
        raise CheckpointError(f"{where} must be one floating number a layer, has shape {shape}, {tensors.dtype(name)}")
    value = float(tensors.read(name, (1,), (slice(None),))[0])
    if not 0 < value < math.inf:
        raise CheckpointError(f"{where} must be positive and finite, got {value}")
    return value
