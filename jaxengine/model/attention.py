"""The attention branches of a layer: project, clip, normalise queries and keys, attend, project back.

Legend: T tokens, K key/value heads, G query heads per key/value head, D head dimension.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import LayerKind, ModelSpec, QueryScale
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.model.linear import Linear
from jaxengine.model.norm import HeadNorm, Norm, value_normalised
from jaxengine.model.rounding import rounded_once
from jaxengine.ops import AttentionBias, AttentionSpec, Ops, RopeTables, StepBatch
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.cache import rotated


class Attention(nnx.Module):
    """Self-attention: x [T, hidden] → [T, hidden], and the caches with the tokens' keys and values written."""

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        self.qkv = Linear.named("qkv", get)
        self.out = Linear.named("out", get)
        norm = spec.attention.qk_norm
        self.norm = None if norm is None else HeadNorm(norm, spec.norm.eps, get("qk_norm"), get("qk_norm_bias"))
        self.value_eps = spec.norm.eps if spec.attention.value_norm else None
        self.clip = spec.attention.clip
        self.query_scale = spec.attention.query_scale
        plain = AttentionSpec(kind.scale, kind.window, spec.attention.softcap)
        rounded = spec.attention.alibi_rounded
        self.spec = replace(plain, alibi_scale=plain.scale_for(spec.head_dim)) if rounded else plain
        self.sinks = nnx.Param(get("sinks")) if spec.attention.sinks else None
        self.gate = Linear.named("head_gate", get) if spec.attention.output_gate else None
        self.ops = ops

    @property
    def alone_reads(self) -> Linear | None:
        """The product that alone reads what the layer's norm has made, if there is one."""
        return self.qkv if self.gate is None else None

    def __call__(
        self,
        x: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, Array, Array]:
        qkv = self.projected(x, batch.adapters)
        if self.query_scale is not None:
            qkv = _scaled(qkv, batch.position, self.query_scale)
        if self.sinks is not None:
            bias = bias._replace(sinks=self.sinks[...].astype(jnp.float32))
        attended, keys, values = self.ops.attend(qkv, rope_tables, keys, values, batch, bias, self.spec)
        if self.gate is not None:
            attended = attended * rounded_once(jax.nn.sigmoid, self.gate(x, adapters=batch.adapters))
        return self.out(attended, adapters=batch.adapters), keys, values

    def projected(self, x: Array, adapters: AdapterTokens | None = None) -> Array:
        """Queries, keys and values of `x` [T, hidden], not yet rotated: [T, K, G+2, D]."""
        qkv = self.qkv(x, adapters=adapters)
        if self.clip:
            qkv = qkv.clip(-self.clip, self.clip)
        if self.norm is not None:
            qkv = jnp.concatenate([self.norm(qkv[:, :, :-1]), qkv[:, :, -1:]], axis=2)
        return qkv if self.value_eps is None else value_normalised(qkv, self.value_eps)


def _scaled(qkv: Array, position: Array, scale: QueryScale) -> Array:
    """`qkv` [T, K, G+2, D] with queries multiplied for their `position` [T]."""
    factor = 1 + scale.beta * jnp.log(1 + position // scale.length)  # f32 [T]
    is_query = jnp.arange(qkv.shape[2]) < qkv.shape[2] - 2
    return qkv * jnp.where(is_query, factor[:, None], 1).astype(qkv.dtype)[:, None, :, None]


class ReadingAttention(nnx.Module):
    """x [T, hidden] → [T, hidden], attending to the keys and values that an earlier layer has written for the same
    tokens; `keys` and `values` are the caches with that layer's place.
    """

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        self.q = Linear.named("q", get)
        norm = spec.attention.qk_norm
        self.norm = None if norm is None else Norm.named("q_norm", NormSpec(norm.kind, spec.norm.eps), get)
        self.out = Linear.named("out", get)
        self.spec = AttentionSpec(kind.scale, kind.window, spec.attention.softcap)
        self.ops = ops

    @property
    def alone_reads(self) -> Linear:
        """As of `Attention`."""
        return self.q

    def __call__(
        self,
        x: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, Array, Array]:
        q = self.q(x, adapters=batch.adapters)  # [T, K, G, D]
        if self.norm is not None:
            q = self.norm(q)
        if rope_tables is not None:
            q = rotated(q, rope_tables)
        read = self.ops.read(q, keys, values, batch, self.spec)
        return self.out(read, adapters=batch.adapters), keys, values


class PictureAttention(nnx.Module):
    """x [T, hidden] → [T, hidden], attending to what the tower has made of pictures, which stays as it is: `keys` and
    `values` are those of `PictureCaches`, and `batch` is its batch.
    """

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        self.q = Linear.named("cross_q", get)
        normed = kind.cross is not None and kind.cross.norm
        self.norm = Norm.named("cross_q_norm", NormSpec("rms", spec.norm.eps), get) if normed else None
        self.out = Linear.named("cross_out", get)
        self.spec = AttentionSpec(kind.scale)
        self.ops = ops

    @property
    def alone_reads(self) -> Linear:
        """As of `Attention`."""
        return self.q

    def __call__(
        self,
        x: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, Array, Array]:
        q = self.q(x, adapters=batch.adapters)  # [T, K, G, D]
        if self.norm is not None:
            q = self.norm(q)
        read = self.ops.read(q, keys, values, batch, self.spec)
        return self.out(read, adapters=batch.adapters), keys, values


class CrossAttention(nnx.Module):
    """x [T, hidden] → [T, hidden], attending to the keys and values that the encoder wrote in the layer's place."""

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        self.q = Linear.named("cross_q", get)
        self.out = Linear.named("cross_out", get)
        self.spec = AttentionSpec(kind.scale)
        self.ops = ops

    def __call__(self, x: Array, keys: Array, values: Array, batch: StepBatch) -> Array:
        read = self.ops.read(self.q(x, adapters=batch.adapters), keys, values, batch, self.spec)
        return self.out(read, adapters=batch.adapters)
