"""Norms with their parameters; the formulas are in `jaxengine/ops/norm.py`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.architecture.model import QKNorm
from jaxengine.ops import Ops
from jaxengine.ops.norm import normalised, scaled
from jaxengine.ops.weight import in_order


class Norm(nnx.Module):
    """x [..., hidden] normalised, times weight [hidden], plus bias [hidden]; either may be None.

    With an order, i32 [hidden], the result has its elements in that order, as a product with sorted inputs reads them.
    """

    def __init__(self, spec: NormSpec, weight: Any, bias: Any, order: Any = None) -> None:
        self.spec = spec
        self.order = None if order is None else nnx.Param(order)
        self.weight = None if weight is None else nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    @classmethod
    def named(cls, name: str, spec: NormSpec, get: Callable[[str], Any], order: Any = None) -> "Norm":
        return cls(spec, get(name), get(f"{name}_bias"), order)

    def __call__(self, x: Array) -> Array:
        wide = normalised(x.astype(jnp.float32), self.spec.kind, self.spec.eps)
        weight, bias, order = self._parameters()
        return in_order(scaled(wide, self.spec.kind, weight, bias, x.dtype), order)

    def after(self, x: Array, branch: Array | None, ops: Ops) -> tuple[Array, Array]:
        """x + branch, and the norm of the sum."""
        return (x, self(x)) if branch is None else ops.add_norm(x, branch, *self._parameters(), self.spec)

    def _parameters(self) -> tuple[Array | None, Array | None, Array | None]:
        parameters = (self.weight, self.bias, self.order)
        weight, bias, order = (None if parameter is None else parameter[...] for parameter in parameters)
        return weight, bias, order


class HeadNorm(nnx.Module):
    """Normalises queries and keys [T, K, G+1, D]: each head alone, or all queries and all keys of a token together."""

    def __init__(self, spec: QKNorm, eps: float, weight: Any, bias: Any) -> None:
        self.kind = spec.kind
        self.eps = eps
        self.over = spec.over
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        if self.over == "head":
            wide = normalised(wide, self.kind, self.eps, (-1,))
        else:
            parts = (wide[:, :, :-1], wide[:, :, -1:])
            wide = jnp.concatenate([normalised(part, self.kind, self.eps, (1, 2, 3)) for part in parts], axis=2)
        bias = None if self.bias is None else self.bias[...]
        return scaled(wide, self.kind, self.weight[...], bias, x.dtype)


def value_normalised(qkv: Array, eps: float) -> Array:
    """`qkv` [T, K, G+2, D] with the values of each head divided by the root of their mean square."""
    values = normalised(qkv[:, :, -1:].astype(jnp.float32), "rms", eps).astype(qkv.dtype)
    return jnp.concatenate([qkv[:, :, :-1], values], axis=2)
