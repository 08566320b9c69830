"""Attention over latents (`architecture.latent`): from a layer's input to latents, to attention, and back.

The matrices that would make a head's keys and values of a latent are used on the other side: queries are multiplied by
the one before they meet the latents, and what is attended, a sum of latents, by the other. So all heads read the same
keys, and the latents are both keys and values (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.2, "absorbed").

Legend: T tokens, K copies of the one key/value head, G query heads each, R elements of a latent, P of a key's part that
turns, N of its other part, V of a head's value.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import LayerKind, ModelSpec
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops import AttentionBias, AttentionSpec, Ops, RopeTables, StepBatch
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.cache import rotated


class LatentAttention(nnx.Module):
    """x [T, hidden] → [T, hidden], and the caches with the tokens' latents and shared keys written."""

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        latent = spec.attention.latent
        assert latent is not None
        norm = NormSpec("rms", latent.eps)
        self.latent = latent
        self.q_a = Linear.named("q_a", get) if latent.query_rank else None
        self.q_a_norm = Norm.named("q_a_norm", norm, get) if latent.query_rank else None
        self.q = Linear.named("q", get)
        self.kv_a = Linear.named("kv_a", get)
        self.kv_a_norm = Norm.named("kv_a_norm", norm, get)
        self.k_up = nnx.Param(get("k_up"))  # [K, G, N, R]
        self.v_up = nnx.Param(get("v_up"))  # [K, G, V, R]
        self.out = Linear.named("out", get)
        self.sinks = nnx.Param(get("sinks")) if spec.attention.sinks else None
        scale = AttentionSpec(kind.scale).scale_for(spec.head_dim)
        self.spec = AttentionSpec(scale, kind.window, spec.attention.softcap, latent=latent.rank)
        self.ops = ops

    @property
    def alone_reads(self) -> None:
        """As of `Attention`: several products read the same."""
        return None

    def __call__(
        self,
        x: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, Array, Array]:
        if self.sinks is not None:
            bias = bias._replace(sinks=self.sinks[...].astype(jnp.float32))
        q, key = self._queries(x, rope_tables, batch.adapters), self._key(x, rope_tables, batch.adapters)
        shared = jnp.broadcast_to(key[:, None, None], (len(key), q.shape[1], 1, q.shape[3]))
        q_and_key = jnp.concatenate([q, shared], axis=2)  # [T, K, G+1, R+P]
        attended, keys, values = self.ops.attend(q_and_key, None, keys, values, batch, bias, self.spec)
        heads = jnp.einsum("tkgr,kgvr->tkgv", attended, self.v_up[...])
        return self.out(heads, adapters=batch.adapters), keys, values

    def _queries(self, x: Array, rope_tables: RopeTables | None, adapters: AdapterTokens | None) -> Array:
        """Queries of latents and shared keys, rotated: [T, K, G, R+P]."""
        if self.q_a is not None and self.q_a_norm is not None:
            x = self.q_a_norm(self.q_a(x, adapters=adapters))
        q = self.q(x, adapters=adapters)  # [T, K, G, N+P]
        plain, turning = q[..., : self.latent.plain_dim], q[..., self.latent.plain_dim :]
        of_latents = jnp.einsum("tkgn,kgnr->tkgr", plain, self.k_up[...])
        return jnp.concatenate([of_latents, _turned(turning, rope_tables)], axis=-1)

    def _key(self, x: Array, rope_tables: RopeTables | None, adapters: AdapterTokens | None) -> Array:
        """The latent and the shared key behind it, rotated: [T, R+P]."""
        made = self.kv_a(x, adapters=adapters)
        latent, turning = made[:, : self.latent.rank], made[:, self.latent.rank :]
        return jnp.concatenate([self.kv_a_norm(latent), _turned(turning, rope_tables)], axis=-1)


def _turned(x: Array, rope_tables: RopeTables | None) -> Array:
    return x if rope_tables is None else rotated(x, rope_tables)
