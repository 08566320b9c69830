"""Paged attention in plain JAX: exact, on any device, at a cost that follows the real lengths, not the table's width.

Keys are read in blocks through the page table with a running softmax (Milakov & Gimelshein 2018, arXiv 1805.02867), in
f32. Blocks lie at fixed positions of each sequence, and a masked block changes no bit of the result, so a row's result
does not depend on its neighbours. Their NaN cannot reach it either: values that no query of a row sees, such as those
of a page's former owner, are replaced by zero, because a weight of zero times NaN is NaN. On a GPU the gathers make
this path slow; the kernels replace it.

Legend: T tokens, R rows, K key/value heads, G query heads per key/value head, D head dimension, S keys of a block.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.ops.alibi import alibi
from jaxengine.ops.batch import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.cache import as_floats, split, write
from jaxengine.ops.spec import AttentionSpec

# Keys that a loop iteration reads, unless a page has more; 128 took 1.05 to 1.8 times as long at lengths of 60 to 768.
KEY_BLOCK = 64
QUERY_BLOCK = 32  # queries of a ragged step that are computed together
FEW_HEADS = (
    4  # up to so many key/value heads a decode step multiplies by zeros instead of transposing the keys it reads
)
MASKED = -1e30  # finite, so that exp(MASKED - maximum) is 0, not NaN, even in a fully masked block

Running = tuple[Array, Array, Array]  # maximum [..], sum [..] and weighted values [.., D], all f32


def attend(
    qkv: Array,
    rope_tables: RopeTables | None,
    keys: Array,
    values: Array,
    batch: StepBatch,
    bias: AttentionBias,
    spec: AttentionSpec,
) -> tuple[Array, Array, Array]:
    """`jaxengine.ops.Ops.attend` on one device."""
    q, k, v = split(qkv, rope_tables)
    keys, values = write(keys, k, batch), write(values, v, batch)
    return attention(q, keys, values, batch, spec, bias), keys, values


def attention(
    q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, bias: AttentionBias
) -> Array:
    """q [T, K, G, D], keys and values [pages, page_size, K, D] → [T, K, G, D] in q's dtype."""
    scaled = q.astype(jnp.float32) * spec.scale_for(q.shape[-1])
    attend = _ragged if batch.ragged else _decode
    return attend(scaled, keys, values, batch, spec, bias).astype(q.dtype)


def _start(q: Array, sinks: Array | None) -> Running:
    if sinks is None:
        return jnp.full(q.shape[:-1], MASKED), jnp.zeros(q.shape[:-1]), jnp.zeros(q.shape)
    return jnp.broadcast_to(sinks, q.shape[:-1]), jnp.ones(q.shape[:-1]), jnp.zeros(q.shape)


def _biased(scores: Array, position: Array, key: Array, spec: AttentionSpec, bias: AttentionBias) -> Array:
    """`scores` [T, K, G, S] of queries at `position` [T] and keys at `key` [S], capped and with the biases added."""
    if spec.softcap:
        scores = spec.softcap * jnp.tanh(scores / spec.softcap)
    if bias.slopes is not None:
        scores = scores + alibi(bias.slopes[..., None], position[:, None, None, None], key, spec)
    if bias.relative is None:
        return scores
    furthest = bias.relative.shape[-1] // 2
    distance = position[:, None] - key  # [T, S]
    relative = bias.relative[..., jnp.clip(distance, -furthest, furthest) + furthest]  # [K, G, T, S]
    return scores + jnp.moveaxis(relative, 2, 0)


def _visible(key: Array, position: Array, kv_length: Array, spec: AttentionSpec) -> Array:
    """bool [T, S]: which of the keys at `key` [S] each query sees; position and kv_length [T]."""
    visible = key < kv_length[:, None]
    return visible & (position[:, None] - key < spec.window) if spec.window else visible


def _absorb(running: Running, scores: Array, visible: Array, weigh: Callable[[Array], Array]) -> Running:
    """Fold a block's `scores` [.., S] into the running softmax; `weigh` sums its values by weights [.., S]."""
    maximum, total, output = running
    scores = jnp.where(visible, scores, MASKED)
    new = jnp.maximum(maximum, scores.max(-1))
    weights = jnp.where(visible, jnp.exp(scores - new[..., None]), 0)
    decay = jnp.exp(maximum - new)
    output = output * decay[..., None] + weigh(weights)
    return new, total * decay + weights.sum(-1), output


def _finish(running: Running) -> Array:
    _, total, output = running
    return output / jnp.where(total == 0, 1, total)[..., None]


def _like(mask: Array, array: Array) -> Array:
    """`mask` [T], shaped to broadcast with `array` [T, …]."""
    return mask.reshape(-1, *(1,) * (array.ndim - 1))


def _block(keys: Array) -> int:
    """How many keys of a cache [pages, page_size, K, D] make a block: whole pages."""
    return max(KEY_BLOCK, keys.shape[1])


def _key_blocks(position: Array, kv_length: Array, real: Array, spec: AttentionSpec, block: int) -> tuple[Array, Array]:
    """The first key block that any of the `real` queries sees, and the one after the last."""
    end = jnp.max(jnp.where(real, kv_length, 0))
    if not spec.window:
        return jnp.zeros_like(end), (end + block - 1) // block
    begin = jnp.maximum(jnp.min(jnp.where(real, position, end)) + 1 - spec.window, 0)
    return begin // block, (end + block - 1) // block


def _scores(q: Array, k: Array) -> Array:
    """q [R, K, G, D] and k [R, S, K·D] → [R, K, G, S].

    With few heads, each is multiplied by the keys of all heads as they lie in memory, those of the other heads times
    zero: K times the products, but no transpose. Done for values too, a step of 16 rows took 0.8 of the time at K = G =
    3, and the same time at K = 8.
    """
    rows, heads, group, dim = q.shape
    if heads > FEW_HEADS:
        return jnp.einsum("rkgd,rskd->rkgs", q, k.reshape(rows, -1, heads, dim))
    wide = jnp.einsum("rkgd,kj->rkgjd", q, jnp.eye(heads)).reshape(rows, heads * group, -1)
    return jnp.einsum("rhc,rsc->rhs", wide, k).reshape(rows, heads, group, -1)


def _weighted(v: Array, weights: Array) -> Array:
    """v [R, S, K·D] and weights [R, K, G, S] → [R, K, G, D]."""
    rows, heads, group, keys = weights.shape
    if heads > FEW_HEADS:
        return jnp.einsum("rkgs,rskd->rkgd", weights, v.reshape(rows, keys, heads, -1))
    wide = jnp.einsum("rhs,rsc->rhc", weights.reshape(rows, -1, keys), v)
    return jnp.einsum("rkgkd->rkgd", wide.reshape(rows, heads, group, heads, -1))


def _decode(q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, bias: AttentionBias) -> Array:
    """Every row is one query: a loop over key blocks up to the longest row's end, all rows at once."""
    block = _block(keys)
    width = block // keys.shape[1]  # pages of a block
    position, kv_length = batch.position, batch.kv_length

    def body(i: Array, running: Running) -> Running:
        pages = jax.lax.dynamic_slice_in_dim(batch.tables, i * width, width, axis=1)  # [R, width]
        k, v = (as_floats(cache[pages]).reshape(q.shape[0], block, -1) for cache in (keys, values))  # [R, S, K·D]
        key = i * block + jnp.arange(block)
        visible = _visible(key, position, kv_length, spec)  # [R, S]
        v = jnp.where(visible[:, :, None], v, 0).astype(jnp.float32)
        scores = _biased(_scores(q, k.astype(jnp.float32)), position, key, spec, bias)
        return _absorb(running, scores, visible[:, None, None, :], partial(_weighted, v))

    real = jnp.arange(q.shape[0]) < batch.tokens
    begin, end = _key_blocks(position, kv_length, real, spec, block)
    return _finish(jax.lax.fori_loop(begin, end, body, _start(q, bias.sinks)))


def _ragged(q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, bias: AttentionBias) -> Array:
    """A loop over blocks of queries, which may span several rows, and over the key blocks of each row in a block."""
    tokens = q.shape[0]
    block = min(QUERY_BLOCK, tokens)

    def query_block(i: Array, out: Array) -> Array:
        first = i * block
        queries = jax.lax.dynamic_slice_in_dim(q, first, block)  # [block, K, G, D]
        row = jax.lax.dynamic_slice_in_dim(batch.row, first, block)
        position = jax.lax.dynamic_slice_in_dim(batch.position, first, block)
        kv_length = jax.lax.dynamic_slice_in_dim(batch.kv_length, first, block)
        real = first + jnp.arange(block) < batch.tokens

        def one_row(r: Array, running: Running) -> Running:
            mine = (row == r) & real  # [block]
            begin, end = _key_blocks(position, kv_length, mine, spec, _block(keys))
            table = batch.tables[r]
            absorb = partial(_absorb_block, queries, keys, values, table, position, kv_length, mine, spec, bias)
            after = jax.lax.fori_loop(begin, end, absorb, running)
            return jax.tree.map(lambda new, old: jnp.where(_like(mine, new), new, old), after, running)

        last_row = jnp.max(jnp.where(real, row, row[0]))
        running = jax.lax.fori_loop(row[0], last_row + 1, one_row, _start(queries, bias.sinks))
        return jax.lax.dynamic_update_slice_in_dim(out, _finish(running), first, axis=0)

    return jax.lax.fori_loop(0, (batch.tokens + block - 1) // block, query_block, jnp.zeros(q.shape))


def _absorb_block(
    queries: Array,
    keys: Array,
    values: Array,
    table: Array,
    position: Array,
    kv_length: Array,
    mine: Array,
    spec: AttentionSpec,
    bias: AttentionBias,
    j: Array,
    running: Running,
) -> Running:
    """Add key block `j` of the sequence with page table `table` [W], for the queries [block, K, G, D] in `mine`."""
    block = _block(keys)
    width = block // keys.shape[1]
    pages = jax.lax.dynamic_slice_in_dim(table, j * width, width)
    k = as_floats(keys[pages]).reshape(block, *keys.shape[2:])  # [S, K, D]
    v = as_floats(values[pages]).reshape(k.shape)
    scores = jnp.einsum("tkgd,skd->tkgs", queries, k.astype(jnp.float32))
    key = j * block + jnp.arange(block)
    visible = mine[:, None] & _visible(key, position, kv_length, spec)  # [block, S]
    v = jnp.where(visible.any(0)[:, None, None], v, 0).astype(jnp.float32)
    scores = _biased(scores, position, key, spec, bias)
    return _absorb(running, scores, visible[:, None, None, :], lambda weights: jnp.einsum("tkgs,skd->tkgd", weights, v))
