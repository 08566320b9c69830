"""One layer: attention and MLP around the residual stream, in any of the arrangements of `Block`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.model.attention import Angles, Attend, Attention
from jaxengine.model.mlp import MLP
from jaxengine.model.moe import MixtureOfExperts
from jaxengine.model.norm import Norm
from jaxengine.model.spec import ModelSpec
from jaxengine.model.switches import LayerKind
from jaxengine.ops import AttentionBatch


class Layer(nnx.Module):
    """x [T, hidden] → [T, hidden], and the layer's caches with the tokens' keys and values written."""

    def __init__(
        self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], platform: str, attend: Attend
    ) -> None:
        def norm(name: str) -> Norm:
            return Norm.named(name, spec.norm, get)

        two = spec.block == "sandwich"
        self.block = spec.block
        self.residual_scale = spec.residual_scale
        self.attention_norm = norm("attention_norm")
        self.attention = Attention(spec, kind, get, platform, attend)
        self.attention_post_norm = norm("attention_post_norm") if two else None
        self.mlp_norm = None if spec.block == "parallel" else norm("mlp_norm")
        self.mlp = MixtureOfExperts(spec, get, platform) if kind.experts else MLP(spec, get, platform)
        self.mlp_post_norm = norm("mlp_post_norm") if two else None

    def __call__(
        self, x: Array, keys: Array, values: Array, angles: Angles | None, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        seen = self._before(x, self.attention_norm)
        attended, keys, values = self.attention(seen, keys, values, angles, batch)
        if self.block == "parallel":
            return x + self._scaled(attended + self.mlp(seen)), keys, values
        if self.block == "parallel_norms":
            return x + self._scaled(attended + self.mlp(self._before(x, self.mlp_norm))), keys, values
        x = self._added(x, attended, self.attention_norm, self.attention_post_norm)
        branch = self.mlp(self._before(x, self.mlp_norm))
        return self._added(x, branch, self.mlp_norm, self.mlp_post_norm), keys, values

    def _before(self, x: Array, norm: Norm | None) -> Array:
        """What a branch reads."""
        return x if norm is None or self.block in ("branch_norm", "post_norm") else norm(x)

    def _added(self, x: Array, branch: Array, norm: Norm | None, post_norm: Norm | None) -> Array:
        """The residual stream behind a branch."""
        if post_norm is not None:
            branch = post_norm(branch)
        if norm is not None and self.block == "branch_norm":
            branch = norm(branch)
        x = x + self._scaled(branch)
        return norm(x) if norm is not None and self.block == "post_norm" else x

    def _scaled(self, branch: Array) -> Array:
        return branch if self.residual_scale == 1 else branch * jnp.asarray(self.residual_scale, branch.dtype)
