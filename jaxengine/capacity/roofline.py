"""The least a step can cost: bytes it must move and operations it must do, from the model's description alone.

Plans quote this limit, and every benchmark prints its share of it. Weights are read once a step whatever the batch; the
embedding is read by row, so only a tied one counts, as the head. Of experts count those that tokens are sent to, if all
are equally likely. Activations are left out: they are thousandths of the weights.
"""

import math
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
    table.pop("layer_embedding", None)
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
    return itemsize * sum(_cached(spec, layer) for layer in spec.own_layers)


def _cached(spec: ModelSpec, layer: int) -> int:
    """Numbers of a token that `layer` attends to: its keys and its values, or its latent."""
    sized, latent = spec.sized(spec.kind(layer)), spec.attention.latent
    return sized.num_kv_heads * (latent.cached if latent else 2 * sized.head_dim)


def _products(spec: ModelSpec, layer: int) -> int:
    """Of numbers of a query with those of a key, and of a weight with those of its value."""
    latent = spec.attention.latent
    return latent.cached + latent.rank if latent else 2 * (spec.kind(layer).head_dim or spec.head_dim)


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
    kinds = enumerate(map(spec.kind, range(spec.num_layers)))
    text = [layer for layer, kind in kinds if kind.attends and kind.cross is None]
    reach = {layer: spec.kind(layer).window or context + new for layer in text}
    pairs = sum(_products(spec, layer) * _visible(new, context, window) for layer, window in reach.items())
    attention = 2 * rows * pairs * spec.num_heads  # of queries and keys, over all layers
    cached = itemsize * sum(_cached(spec, layer) * min(context, window) for layer, window in reach.items())
    return Cost(
        bytes=weight_bytes(spec, weight_itemsize, formats, tokens)
        + rows * cached
        + 2 * tokens * kv_bytes_per_token(spec, itemsize)
        + 2 * rows * state_bytes(spec, itemsize),
        operations=2 * tokens * (weights - head) + 2 * rows * head + attention,
    )


def _visible(new: int, context: int, window: int) -> int:
    """How many (query, key) pairs causality and the window leave to `new` queries behind `context` keys."""
    growing = min(new, max(0, window - context))  # queries that see everything before them
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window
