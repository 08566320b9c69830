"""One layer: attention and MLP around the residual stream, in any of the arrangements of `Block`.

Behind an encoder a branch between the two attends to its output.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.device import DeviceTraits
from jaxengine.model.attention import Attention, CrossAttention
from jaxengine.model.mlp import MLP
from jaxengine.model.moe import MixtureOfExperts
from jaxengine.model.norm import Norm
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch
from jaxengine.spec.model import LayerKind, ModelSpec


class Stream(NamedTuple):
    """The residual stream [T, hidden], and a branch yet to be added to it: a norm reads the sum, in one kernel."""

    x: Array
    branch: Array | None = None

    def sum(self) -> Array:
        return self.x if self.branch is None else self.x + self.branch


class Layer(nnx.Module):
    """The residual stream → itself behind the layer; the layer's caches → with the tokens' keys and values written."""

    def __init__(
        self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], device: DeviceTraits, ops: Ops
    ) -> None:
        def norm(name: str) -> Norm:
            return Norm.named(name, spec.norm, get)

        two = spec.block == "sandwich"
        self.block = spec.block
        self.residual_scale = spec.residual_scale
        self.ops = ops
        self.attention_norm = norm("attention_norm")
        self.attention = Attention(spec, kind, get, device, ops)
        self.attention_post_norm = norm("attention_post_norm") if two else None
        self.cross_norm = norm("cross_norm") if spec.encoder else None
        self.cross = CrossAttention(spec, kind, get, device, ops) if spec.encoder else None
        self.mlp_norm = None if spec.block == "parallel" else norm("mlp_norm")
        self.mlp = MixtureOfExperts(spec, get, device) if kind.experts else MLP(spec, get, device)
        self.mlp_post_norm = norm("mlp_post_norm") if two else None

    def __call__(
        self,
        stream: Stream,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Stream, Array, Array]:
        x, seen = self._before(stream, self.attention_norm)
        attended, keys, values = self.attention(seen, keys, values, rope_tables, bias, batch)
        if self.block in ("parallel", "parallel_norms"):
            if self.mlp_norm is not None:
                seen = self.mlp_norm(x)
            return Stream(x, self._scaled(attended + self._mlp(seen, batch))), keys, values
        stream = self._behind(x, attended, self.attention_norm, self.attention_post_norm)
        if self.cross is not None and batch.cross is not None:
            x, seen = self._before(stream, self.cross_norm)
            stream = self._behind(x, self.cross(seen, keys, values, batch.cross), self.cross_norm, None)
        x, seen = self._before(stream, self.mlp_norm)
        return self._behind(x, self._mlp(seen, batch), self.mlp_norm, self.mlp_post_norm), keys, values

    def _mlp(self, x: Array, batch: StepBatch) -> Array:
        return self.mlp(x, batch.tokens) if isinstance(self.mlp, MixtureOfExperts) else self.mlp(x)

    def _before(self, stream: Stream, norm: Norm | None) -> tuple[Array, Array]:
        """The residual stream, and what a branch reads."""
        if norm is None or self.block in ("branch_norm", "post_norm"):
            return stream.sum(), stream.sum()
        return norm.after(*stream, self.ops)

    def _behind(self, x: Array, branch: Array, norm: Norm | None, post_norm: Norm | None) -> Stream:
        """The residual stream behind a branch."""
        if post_norm is not None:
            branch = post_norm(branch)
        if norm is not None and self.block == "branch_norm":
            branch = norm(branch)
        branch = self._scaled(branch)
        if norm is not None and self.block == "post_norm":
            return Stream(norm.after(x, branch, self.ops)[1])
        return Stream(x, branch)

    def _scaled(self, branch: Array) -> Array:
        return branch if self.residual_scale == 1 else branch * jnp.asarray(self.residual_scale, branch.dtype)
