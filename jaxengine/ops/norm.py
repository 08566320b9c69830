"""Normalisation in plain JAX, its statistics always in f32. It is the CPU's path and the oracle of the GPU kernel,
which uses the same formulas.

rms: Zhang & Sennrich 2019 (arXiv 1910.07467), in Llama's order of casts. rms_plus_one: Gemma's, which multiplies by
1 + weight before it casts. layer: Ba et al. 2016 (arXiv 1607.06450).
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.model import Norm, NormKind
from jaxengine.ops.weight import in_order


def add_norm(
    x: Array, branch: Array | None, weight: Array | None, bias: Array | None, order: Array | None, spec: Norm
) -> tuple[Array, Array]:
    """x and branch [T, hidden] → x + branch, rounded to their dtype, and the sum's norm; weight and bias [hidden].

    The norm has its elements in `order`, i32 [hidden], if there is one.
    """
    total = x if branch is None else x + branch
    wide = normalised(total.astype(jnp.float32), spec.kind, spec.eps)
    return total, in_order(scaled(wide, spec.kind, weight, bias, x.dtype), order)


def normalised(
    wide: Array, kind: NormKind, eps: float, axes: tuple[int, ...] = (-1,), inside: Array | None = None, size: int = 0
) -> Array:
    """f32 `wide`, normalised over `axes`. In a padded array `size` elements are `inside`, and the others are 0."""
    size = size or math.prod(wide.shape[axis] for axis in axes)
    if kind == "layer":
        wide = wide - wide.sum(axes, keepdims=True) / size
        wide = wide if inside is None else jnp.where(inside, wide, 0)
    return wide * jax.lax.rsqrt((wide * wide).sum(axes, keepdims=True) / size + eps)


def scaled(wide: Array, kind: NormKind, weight: Array | None, bias: Array | None, dtype: jnp.dtype) -> Array:
    """Normalised f32 `wide` times weight plus bias, in `dtype`."""
    if kind == "rms" and weight is not None:
        return weight * wide.astype(dtype)
    if weight is not None:
        wide = wide * (weight.astype(jnp.float32) + (1 if kind == "rms_plus_one" else 0))
    if bias is not None:
        wide = wide + bias.astype(jnp.float32)
    return wide.astype(dtype)
