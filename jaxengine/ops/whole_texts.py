"""Attention within whole texts: no cache and no pages, because all keys of a row are among its own tokens.

For programs that compute every token of some texts at once, whose numbers of texts and of tokens may be symbols. Plain
JAX: one block of all keys, with the softmax of the reference back end.

Legend: R texts of S tokens, T = R·S, K key/value heads, G query heads per key/value head, D head dimension.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.ops import NO_BIAS, PLAIN_SPEC, AttentionBias, AttentionSpec, Ops, RopeTables, StepBatch, softmax
from jaxengine.ops.cache import as_attended, split


class WholeTextOps(Ops):
    """`Ops` for batches whose rows all have S tokens, padding among them; on one device, whichever that will be."""

    def __init__(self) -> None:
        super().__init__("reference", None)

    def attend(
        self,
        qkv: Array,
        rope_tables: RopeTables | None,
        keys: Array,
        values: Array,
        batch: StepBatch,
        bias: AttentionBias = NO_BIAS,
        spec: AttentionSpec = PLAIN_SPEC,
    ) -> tuple[Array, Array, Array]:
        """As of `Ops`; the caches are neither read nor written."""
        texts = batch.tables.shape[0]
        real = batch.row < texts
        of_tokens = *split(qkv, rope_tables, spec), batch.position, batch.kv_length, batch.unhidden, real
        by_text = jax.tree.map(lambda x: x.reshape(texts, -1, *x.shape[1:]), of_tokens)
        attended = jax.vmap(partial(_attention, bias, spec))(*by_text)  # [R, S, K, G, D]
        return attended.reshape(-1, *attended.shape[2:]), keys, values


def _attention(
    bias: AttentionBias,
    spec: AttentionSpec,
    q: Array,
    k: Array,
    v: Array,
    position: Array,
    kv_length: Array,
    unhidden: Array | None,
    real: Array,
) -> Array:
    """Of one text: q [S, K, G, D], k and v [S, K, D], all others [S] → [S, K, G, D]. Padding is no key."""
    k, v = as_attended(k, v, spec)
    wide = q.astype(jnp.float32) * spec.scale_for(q.shape[-1])
    scores = softmax.biased(jnp.einsum("tkgd,skd->tkgs", wide, k.astype(jnp.float32)), position, position, spec, bias)
    seen = softmax.visible_keys(position, position, kv_length, spec, unhidden)
    visible = (seen & real)[:, None, None]  # [S, 1, 1, S]
    weigh = partial(jnp.einsum, "skd,tkgs->tkgd", v.astype(jnp.float32))
    return softmax.finish(softmax.absorb(softmax.start(wide, bias.sinks, spec), scores, visible, weigh)).astype(q.dtype)
