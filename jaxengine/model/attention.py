"""The attention branch of a layer: project, clip, normalise, rotate, attend through the pages, project back.

Legend: T tokens, K key/value heads, G query heads per key/value head, D head dimension.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jaxengine.model.linear import Linear
from jaxengine.model.norm import HeadNorm
from jaxengine.model.rope import rotate
from jaxengine.model.spec import ModelSpec
from jaxengine.model.switches import LayerKind
from jaxengine.ops import AttentionBatch, AttentionSpec, HeadTerms, PagedAttention

Angles = tuple[Array, Array]  # cos and sin, each [T, dim/2]
Attend = Callable[[AttentionSpec], PagedAttention]


class Attention(nnx.Module):
    """x [T, hidden] → [T, hidden] and the layer's caches with the tokens' keys and values written."""

    def __init__(
        self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], platform: str, attend: Attend
    ) -> None:
        self.qkv = Linear.named("qkv", get, platform)
        self.out = Linear.named("out", get, platform, inputs=3)
        norm = spec.attention.qk_norm
        self.norm = None if norm is None else HeadNorm(norm, spec.norm.eps, get("qk_norm"), get("qk_norm_bias"))
        self.alibi = spec.attention.alibi
        self.heads = (spec.num_kv_heads, spec.group)
        self.clip = spec.attention.clip
        self.attend = attend(AttentionSpec(kind.scale, kind.window, spec.attention.softcap))

    def __call__(
        self, x: Array, keys: Array, values: Array, angles: Angles | None, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        qkv = self.qkv(x)  # [T, K, G+2, D]
        if self.clip:
            qkv = qkv.clip(-self.clip, self.clip)
        q_and_k, v = qkv[:, :, :-1], qkv[:, :, -1]  # [T, K, G+1, D], [T, K, D]
        if self.norm is not None:
            q_and_k = self.norm(q_and_k)
        if angles is not None:
            q_and_k = rotate(q_and_k, *angles)
        q, k = q_and_k[:, :, :-1], q_and_k[:, :, -1]
        attended, keys, values = self.attend(q, k, v, keys, values, batch, self._terms())  # [T, K, G, D]
        return self.out(attended), keys, values

    def _terms(self) -> HeadTerms:
        slopes = np.asarray(self.alibi, np.float32).reshape(self.heads) if self.alibi else None
        return HeadTerms(slopes=None if slopes is None else jnp.asarray(slopes))
