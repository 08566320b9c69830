"""The least a step can cost: bytes it must move and operations it must do, from the model's description alone.

Plans quote this limit, and every benchmark prints its share of it. Weights are read once a step whatever the batch; the
embedding is read by row, so only a tied one counts, as the head. Of experts count those that tokens are sent to, if all
are equally likely. Activations are left out: they are thousandths of the weights.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax.numpy as jnp

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.weights.quantization import is_projection

FLOATS: Mapping[str, WeightFormat] = {}


@dataclass(frozen=True)
class Cost:
    """Of one step on all devices together."""

    bytes: float
    operations: float

    def seconds(self, bandwidth: float, rate: float) -> float:
        """The floor at `bandwidth` bytes/s and `rate` operations/s: the larger of the two, since they overlap."""
        return max(self.bytes / bandwidth, self.operations / rate)


def weights_read(spec: ModelSpec) -> dict[str, Parameter]:
    """Every matrix and vector that a step reads whole; behind an encoder, one that only decodes. None of a tower."""
    table = parameter_table(replace(spec, vision=None))
    if not spec.head.tied:
        del table["embedding"]
    return {name: each for name, each in table.items() if not name.startswith("encoder.") and "cross_kv" not in name}


def weight_elements(spec: ModelSpec) -> int:
    return sum(math.prod(parameter.shape) for parameter in weights_read(spec).values())


def projection_elements(spec: ModelSpec) -> int:
    """Of the matrices that are quantised."""
    return sum(math.prod(each.shape) for name, each in parameter_table(spec).items() if is_projection(name))


def weight_bytes(
    spec: ModelSpec, itemsize: float, formats: Mapping[str, WeightFormat] = FLOATS, tokens: int | None = None
) -> float:
    """Of the weights that a step of `tokens` reads, by default of so many that all experts have some: `itemsize` an
    element, or what the quantised format of `formats` holds.
    """
    return sum(
        _share_read(spec, each, tokens) * _held(each, itemsize, formats.get(name))
        for name, each in weights_read(spec).items()
    )


def _held(parameter: Parameter, itemsize: float, format: WeightFormat | None) -> float:
    if format is None:
        return itemsize * math.prod(parameter.shape)
    return sum(
        jnp.dtype(dtype).itemsize
        * math.prod(parameter.component(component, format).shape)
        * (format.bits / 8 if component == "values" else 1)
        for component, dtype in format.dtypes.items()
    )


def _share_read(spec: ModelSpec, parameter: Parameter, tokens: int | None) -> float:
    """The share of experts that at least one of `tokens` is sent to."""
    if not parameter.stacked or spec.experts is None or tokens is None:
        return 1
    return 1 - (1 - spec.experts.used / spec.experts.count) ** tokens


def weights_used(spec: ModelSpec) -> float:
    """Elements that one token is multiplied by."""
    share = spec.experts.used / spec.experts.count if spec.experts else 1
    return sum((share if each.stacked else 1) * math.prod(each.shape) for each in weights_read(spec).values())


def kv_bytes_per_token(spec: ModelSpec, itemsize: int) -> int:
    return 2 * len(spec.attending_layers) * spec.num_kv_heads * spec.head_dim * itemsize


def state_bytes(spec: ModelSpec, itemsize: int) -> int:
    """What is kept of a sequence instead of keys and values; `itemsize` is of the convolution's inputs."""
    if spec.kept:
        kept = sum((4 if each.states else itemsize) * math.prod(each.shape) for each in spec.kept)
        return len(spec.recurrent_layers) * kept
    if spec.state_space is None:
        return 0
    space = spec.state_space
    return spec.num_layers * space.channels * (4 * space.size + itemsize * (space.kernel - 1))


def step_cost(
    spec: ModelSpec,
    rows: int,
    new: int,
    context: int,
    itemsize: int = 2,
    weight_itemsize: float = 2,
    formats: Mapping[str, WeightFormat] = FLOATS,
) -> Cost:
    """A step of `rows` sequences, each computing `new` tokens behind `context` cached ones.

    Args:
        itemsize: bytes of a cache element.
        weight_itemsize: bytes of a weight element.
        formats: of the weights that are quantised.
    """
    weights, tokens = weights_used(spec), rows * new
    head = spec.vocab_size * spec.hidden_size
    reach = [spec.kind(layer).window or context + new for layer in spec.attending_layers]
    pairs = rows * sum(_visible(new, context, window) for window in reach)  # of queries and keys, over all layers
    attention = 4 * pairs * spec.num_heads * spec.head_dim
    cached = statistics.fmean(min(context, window) for window in reach)
    return Cost(
        bytes=weight_bytes(spec, weight_itemsize, formats, tokens)
        + (rows * cached + 2 * tokens) * kv_bytes_per_token(spec, itemsize)
        + 2 * rows * state_bytes(spec, itemsize),
        operations=2 * tokens * (weights - head) + 2 * rows * head + attention,
    )


def _visible(new: int, context: int, window: int) -> int:
    """How many (query, key) pairs causality and the window leave to `new` queries behind `context` keys."""
    growing = min(new, max(0, window - context))  # queries that see everything before them
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
