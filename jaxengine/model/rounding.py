"""What is computed in f32 and rounded once, as PyTorch computes it. XLA would round each operation."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array


def rounded_once(function: Callable[..., Array], *inputs: Array) -> Array:
    """`function` of `inputs`, rounded to their type. In bf16, with each operation rounded, GELU by 1 + tanh was 0 from
    -3.1 on, where it is -0.003.
    """
    return function(*(x.astype(jnp.float32) for x in inputs)).astype(inputs[0].dtype)


def times(x: Array, factor: float) -> Array:
    """`x` times a factor of a model's configuration. In bf16 Granite's 0.22 itself would be 0.2197, and what its
    branches add 0.1 % too small.
    """
    return x if factor == 1 else rounded_once(lambda exact: exact * factor, x)
