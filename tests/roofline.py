"""The least a step can cost: bytes it must move and operations it must do, from the model's description alone.

Every benchmark prints its share of this limit. Weights are read once a step whatever the batch; the embedding is read
by row, so only a tied one counts, as the head. Activations are left out: they are thousandths of the weights.
"""

import math
import statistics
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table
from jaxengine.weights.quantization import chosen_formats, is_projection


@dataclass(frozen=True)
class Cost:
    """Of one step on all devices together."""

    bytes: float
    operations: float

    def seconds(self, bandwidth: float, rate: float) -> float:
        """The floor at `bandwidth` bytes/s and `rate` operations/s: the larger of the two, since they overlap."""
        return max(self.bytes / bandwidth, self.operations / rate)


def weights_read(spec: ModelSpec) -> dict[str, Parameter]:
    """Every matrix and vector that a step reads whole; behind an encoder, one that only decodes."""
    table = parameter_table(spec)
    if not spec.head.tied:
        del table["embedding"]
    return {name: each for name, each in table.items() if not name.startswith("encoder.") and "cross_kv" not in name}


def weight_elements(spec: ModelSpec) -> int:
    return sum(math.prod(parameter.shape) for parameter in weights_read(spec).values())


def projection_elements(spec: ModelSpec) -> int:
    """Of the matrices that are quantised."""
    return sum(math.prod(each.shape) for name, each in parameter_table(spec).items() if is_projection(name))


def weight_bytes(spec: ModelSpec, itemsize: float, quantize: str | None = None) -> float:
    """Of the weights a step reads: `itemsize` an element, or what a quantised format holds."""
    formats = chosen_formats(spec, quantize)

    def size(name: str, parameter: Parameter) -> float:
        format = formats.get(name)
        if format is None:
            return itemsize * math.prod(parameter.shape)
        return sum(
            jnp.dtype(dtype).itemsize
            * math.prod(parameter.component(component, format).shape)
            * (format.bits / 8 if component == "values" else 1)
            for component, dtype in format.dtypes.items()
        )

    return sum(size(name, parameter) for name, parameter in weights_read(spec).items())


def kv_bytes_per_token(spec: ModelSpec, itemsize: int) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize


def state_bytes(spec: ModelSpec, itemsize: int) -> int:
    """What is kept of a sequence instead of keys and values; `itemsize` is of the convolution's inputs."""
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
    quantize: str | None = None,
) -> Cost:
    """A step of `rows` sequences, each computing `new` tokens behind `context` cached ones.

    Args:
        itemsize: bytes of a cache element.
        weight_itemsize: bytes of a weight element.
        quantize: the format of the weights that are quantised.
    """
    weights, tokens = weight_elements(spec), rows * new
    head = spec.vocab_size * spec.hidden_size
    reach = [spec.kind(layer).window or context + new for layer in range(spec.num_layers)]
    pairs = rows * sum(_visible(new, context, window) for window in reach)  # of queries and keys, over all layers
    attention = 4 * pairs * spec.num_heads * spec.head_dim
    cached = statistics.fmean(min(context, window) for window in reach)
    return Cost(
        bytes=weight_bytes(spec, weight_itemsize, quantize)
        + (rows * cached + 2 * tokens) * kv_bytes_per_token(spec, itemsize)
        + 2 * rows * state_bytes(spec, itemsize),
        operations=2 * tokens * (weights - head) + 2 * rows * head + attention,
    )


@cache
def _visible(new: int, context: int, window: int) -> int:
    """How many (query, key) pairs causality and the window leave to `new` queries behind `context` keys."""
    return sum(min(context + i, window) for i in range(1, new + 1))
