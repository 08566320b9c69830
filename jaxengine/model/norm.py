"""Normalisation layers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class RMSNorm(nnx.Module):
    """x / rms(x) * weight, the mean in f32 (Zhang & Sennrich 2019, arXiv 1910.07467; cast order as Llama's)."""

    def __init__(self, weight: Array, eps: float) -> None:
        self.weight = nnx.Param(weight)
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return self.weight[...] * wide.astype(x.dtype)
