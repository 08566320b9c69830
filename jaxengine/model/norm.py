"""Normalisation: three kinds, each with or without weight and bias, the statistics always in f32.

rms: Zhang & Sennrich 2019 (arXiv 1910.07467), in Llama's order of casts. rms_plus_one: Gemma's, which multiplies by
1 + weight before it casts. layer: Ba et al. 2016 (arXiv 1607.06450).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.model.switches import Norm as NormSpec
from jaxengine.model.switches import NormKind, QKNorm


class Norm(nnx.Module):
    """x [..., hidden] normalised, times weight [hidden], plus bias [hidden]; either may be None."""

    def __init__(self, spec: NormSpec, weight: Any, bias: Any) -> None:
        self.kind = spec.kind
        self.eps = spec.eps
        self.weight = None if weight is None else nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    @classmethod
    def named(cls, name: str, spec: NormSpec, get: Callable[[str], Any]) -> "Norm":
        return cls(spec, get(name), get(f"{name}_bias"))

    def __call__(self, x: Array) -> Array:
        wide = _normalised(x.astype(jnp.float32), self.kind, self.eps, (-1,))
        return _scaled(wide, self.kind, self.weight, self.bias, x.dtype)


class HeadNorm(nnx.Module):
    """Queries and keys [T, K, G+1, D], each head normalised by itself or all of a token together, keys apart."""

    def __init__(self, spec: QKNorm, eps: float, weight: Any, bias: Any) -> None:
        self.kind = spec.kind
        self.eps = eps
        self.over = spec.over
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        if self.over == "head":
            wide = _normalised(wide, self.kind, self.eps, (-1,))
        else:
            parts = (wide[:, :, :-1], wide[:, :, -1:])
            wide = jnp.concatenate([_normalised(part, self.kind, self.eps, (1, 2, 3)) for part in parts], axis=2)
        return _scaled(wide, self.kind, self.weight, self.bias, x.dtype)


def _normalised(wide: Array, kind: NormKind, eps: float, axes: tuple[int, ...]) -> Array:
    if kind == "layer":
        wide = wide - wide.mean(axes, keepdims=True)
    return wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=axes, keepdims=True) + eps)


def _scaled(wide: Array, kind: NormKind, weight: Any, bias: Any, dtype: jnp.dtype) -> Array:
    if kind == "rms" and weight is not None:
        return weight[...] * wide.astype(dtype)
    if weight is not None:
        wide = wide * (weight[...].astype(jnp.float32) + (1 if kind == "rms_plus_one" else 0))
    if bias is not None:
        wide = wide + bias[...].astype(jnp.float32)
    return wide.astype(dtype)
