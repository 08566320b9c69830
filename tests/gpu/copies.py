"""A product as a step finds it: its weight comes from the device's memory and not from its cache, and no launch lies
between two of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.device import DeviceTraits
from jaxengine.model import linear
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import Activated
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight
from tests.gpu.ceilings import seconds_per_call

CACHED = 200 << 20  # bytes, several times what an H200 keeps of them near
CALLS = 16  # products of a program at least: a program's own launch was seen to take 18 us

Chain = Callable[[list[Weight], Array], list[Array]]


def copies(weight: Weight) -> list[Weight]:
    """So many that none is found in the device's cache when its turn comes again; some of them are named twice."""
    count = max(2, min(24, -(-CACHED // held_bytes(weight))))
    made = [weight, *(jax.tree.map(jnp.copy, weight) for _ in range(count - 1))]
    return made * -(-CALLS // count)


def held_bytes(weight: Weight) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(weight))


def lowered(weights: list[Weight], x: Array) -> Any:
    """A program of the products of `x` with each of `weights`, in turn; those of two matrices are activated. On a CPU
    kernels are interpreted.
    """
    graph = nnx.graphdef(Linear(weights[0], None))

    @jax.jit
    def one(weight: Weight, x: Array) -> Array:
        linear: Linear = nnx.merge(graph, nnx.state(Linear(weight, None)))
        return linear(x) if weight.values.ndim == 2 else linear.activated(x, Activated())

    interpreted = partial(grouped.product, interpret=DeviceTraits.of(jax.devices()[0]).on_host)
    with patch.object(linear.grouped, "product", interpreted):
        return jax.jit(lambda weights, x: [one(weight, x) for weight in weights]).lower(weights, x)


def seconds(chain: Chain, weights: list[Weight], x: Array, repeats: int) -> float:
    """Of one product."""
    return seconds_per_call(chain, (weights, x), repeats) / len(weights)
