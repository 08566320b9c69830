"""The least a step can cost: bytes it must move and operations it must do, from the model's description alone.

Every benchmark prints its share of this limit. Weights are read once a step whatever the batch; the embedding is read
by row, so only a tied one counts, as the head. Activations are left out: they are thousandths of the weights.
"""

import math
from dataclasses import dataclass

from jaxengine.model.spec import ModelSpec, parameter_table


@dataclass(frozen=True)
class Cost:
    """Of one step on all devices together."""

    bytes: float
    operations: float

    def seconds(self, bandwidth: float, rate: float) -> float:
        """The floor at `bandwidth` bytes/s and `rate` operations/s: the larger of the two, since they overlap."""
        return max(self.bytes / bandwidth, self.operations / rate)


def weight_elements(spec: ModelSpec) -> int:
    """Elements of every matrix and vector that a step reads whole."""
    table = parameter_table(spec)
    sizes = {name: math.prod(parameter.shape) for name, parameter in table.items()}
    return sum(sizes.values()) - (0 if spec.head.tied else sizes["embedding"])


def kv_bytes_per_token(spec: ModelSpec, itemsize: int) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize


def step_cost(
    spec: ModelSpec, rows: int, new: int, context: int, itemsize: int = 2, weight_itemsize: float = 2
) -> Cost:
    """A step of `rows` sequences, each computing `new` tokens behind `context` cached ones.

    Args:
        itemsize: bytes of a cache element.
        weight_itemsize: bytes of a weight element.
    """
    weights, tokens = weight_elements(spec), rows * new
    head = spec.vocab_size * spec.hidden_size
    pairs = rows * (new * context + new * (new + 1) / 2)  # (query, key) pairs that causality leaves
    attention = 4 * pairs * spec.num_layers * spec.num_heads * spec.head_dim
    return Cost(
        bytes=weights * weight_itemsize + (rows * context + 2 * tokens) * kv_bytes_per_token(spec, itemsize),
        operations=2 * tokens * (weights - head) + 2 * rows * head + attention,
    )
