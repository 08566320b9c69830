"""Paged attention in plain JAX: exact, on any device, at a cost that follows the real lengths, not the table's width.

Keys are read in blocks through the page table with a running softmax (`ops/softmax`), in f32. Blocks of keys lie at
fixed positions of each sequence, and a masked block changes no bit of the result. In a ragged step blocks of queries
begin at each row's first query. So a row's result does not depend on its neighbours.
Their NaN cannot reach it either: values that no query of a block sees, such as those of a page's former owner, are
replaced by zero, because a weight of zero times NaN is NaN. On a GPU the gathers make this path slow; the kernels
replace it.

Legend: L layers in the caches, T tokens, R rows, K key/value heads, G query heads per key/value head, D head dimension,
B queries and S keys of a block.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jaxengine.ops import softmax
from jaxengine.ops.batch import AttentionBias, RopeTables, StepBatch, row_starts, unfolded
from jaxengine.ops.cache import as_attended, as_floats, split, write
from jaxengine.ops.spec import AttentionSpec

FEW_HEADS = (
    4  # up to so many key/value heads a decode step multiplies by zeros instead of transposing the keys it reads
)


class Block(NamedTuple):
    """How many queries of one row are computed together, if at least `least` are left, and how many keys at once,
    unless a page has more.
    """

    queries: int
    least: int
    keys: int
    keys_left: int  # a part of `keys`: at the end, where no more are left


# Of a decode step 128 keys took 1.05 to 1.8 times as long at lengths of 60 to 768.
KEY_BLOCK = 64
# Of a ragged step. One query at a time instead of 16 halves the time of decoding rows, but a third kind of block added
# 2 s to the compilation of 30 layers. 256 queries of a prompt of 1024 took 1.1 (K = G = 3) to 1.3 times as long (K = 8,
# G = 4) in blocks of 128 queries, and 3 times as long in blocks of 32 queries and 64 keys. With 256 keys at a time all
# 1024 took 1.17 (K = G = 3), 1.15 (K = 2, G = 7) and 1.0 times as long (K = 8, G = 4) as with 512, and 256 at the end:
# two cores compute no less, but wait for each other more rarely.
BLOCKS = (Block(256, 96, 512, 256), Block(16, 1, 64, 64))


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
    q, k, v, batch = *split(qkv, rope_tables, spec), unfolded(batch)
    keys, values = write(keys, k, batch), write(values, v, batch)
    return attention(q, keys, values, batch, spec, bias), keys, values


def read(q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec) -> Array:
    """`jaxengine.ops.Ops.read` on one device."""
    return attention(q, keys, values, unfolded(batch), spec, AttentionBias())


def attention(
    q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, bias: AttentionBias
) -> Array:
    """q [T, K, G, D], keys and values [L, pages, page_size, K, D] → [T, K, G, D] in q's dtype. With a latent, keys have
    its R elements and so has what is attended, and values have D - R.
    """
    scaled = q.astype(jnp.float32) * spec.scale_for(q.shape[-1])
    attend = _ragged if batch.ragged else _decode
    return attend(scaled, keys, values, batch, spec, bias).astype(q.dtype)


def _block(keys: Array) -> int:
    """How many keys of a cache [L, pages, page_size, K, D] make a block: whole pages."""
    return max(KEY_BLOCK, keys.shape[2])


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
    width = block // keys.shape[2]  # pages of a block
    position, kv_length = batch.position, batch.kv_length

    def body(i: Array, running: softmax.Running) -> softmax.Running:
        pages = jax.lax.dynamic_slice_in_dim(batch.tables, i * width, width, axis=1)  # [R, width]
        k, v = _of_heads(keys, values, batch.layer, pages, block, spec)  # [R, S, K·D]
        key = i * block + jnp.arange(block)
        visible = softmax.visible_keys(key, position, kv_length, spec)  # [R, S]
        v = jnp.where(visible[:, :, None], v, 0).astype(jnp.float32)
        scores = softmax.biased(_scores(q, k.astype(jnp.float32)), position, key, spec, bias)
        return softmax.absorb(running, scores, visible[:, None, None, :], partial(_weighted, v))

    real = jnp.arange(q.shape[0]) < batch.tokens
    begin, end = _key_blocks(position, kv_length, real, spec, block)
    return softmax.finish(jax.lax.fori_loop(begin, end, body, softmax.start(q, bias.sinks, spec)))


def _of_heads(
    keys: Array, values: Array, layer: ArrayLike, pages: Array, block: int, spec: AttentionSpec
) -> tuple[Array, Array]:
    """The keys and values in `pages` [R, pages of a block], of all heads side by side: [R, S, K·D]."""
    rows = len(pages)
    if not spec.latent:
        k, v = (as_floats(cache[layer, pages]).reshape(rows, block, -1) for cache in (keys, values))
        return k, v
    k, v = (as_floats(cache[layer, pages]).reshape(rows, block, *cache.shape[3:]) for cache in (keys, values))
    k, v = as_attended(k, v, spec)
    return k.reshape(rows, block, -1), v.reshape(rows, block, -1)


def _ragged(q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, bias: AttentionBias) -> Array:
    """A loop over rows, and over the blocks that a row's queries make: wide ones, then narrow ones for what is left."""
    starts = row_starts(batch)
    q = jnp.moveaxis(q, 1, 0)  # [K, T, G, D]
    attend = partial(_query_block, q, keys, values, batch, spec, bias)
    out = jnp.zeros((*q.shape[:-1], spec.value_dim(q.shape[-1])))

    def one_row(row: Array, out: Array) -> Array:
        first, end = starts[row], starts[row + 1]
        if batch.wanted is not None:
            first = jnp.where(batch.wanted.only, jnp.clip(batch.wanted.first[row], first, end), first)
        for block in BLOCKS:
            size = min(block.queries, q.shape[1])
            if size < block.least:
                continue
            count = (end - first + size - block.least) // size
            out = jax.lax.fori_loop(0, count, partial(attend, block, row, first, end), out)
            first = first + count * size
        return out

    rows = jnp.max(jnp.where(batch.row < batch.tables.shape[0], batch.row + 1, 0))  # that have tokens
    return jnp.moveaxis(jax.lax.fori_loop(0, rows, one_row, out), 0, 1)


def _query_block(
    q: Array,
    keys: Array,
    values: Array,
    batch: StepBatch,
    spec: AttentionSpec,
    bias: AttentionBias,
    block: Block,
    row: Array,
    first: Array,
    end: Array,
    i: Array,
    out: Array,
) -> Array:
    """`out` [K, T, G, D] with the attention of block `i` of row `row`, whose tokens from `first` to `end` are left."""
    size = min(block.queries, q.shape[1])
    first = first + i * size
    last = jnp.minimum(first + size, end) - 1
    begin: Array | int = jnp.maximum(batch.position[first] + 1 - spec.window, 0) if spec.window else 0
    unhidden = batch.unhidden if spec.window else None
    if unhidden is not None:
        begin = jnp.where(unhidden[first] > 0, 0, begin)
    stop = batch.kv_length[last]
    at = jnp.minimum(first, q.shape[1] - size)  # a block that would pass the end of the step begins before its queries
    queries = jax.lax.dynamic_slice_in_dim(q, at, size, axis=1)  # [K, B, G, D]
    position, kv_length, unhidden = jax.tree.map(
        lambda of_tokens: jax.lax.dynamic_slice_in_dim(of_tokens, at, size), (batch.position, batch.kv_length, unhidden)
    )
    read = partial(_key_block, keys, values, batch.layer, batch.tables[row])

    def absorb(length: int, j: Array, running: softmax.Running) -> softmax.Running:
        k, v = as_attended(*read(length, j), spec)
        key = j * length + jnp.arange(length)
        v = jnp.where(((key >= begin) & (key < stop))[:, None, None], v, 0).astype(jnp.float32)
        scores = jnp.einsum("ktgd,skd->ktgs", queries, k.astype(jnp.float32))
        scores = jnp.moveaxis(softmax.biased(jnp.moveaxis(scores, 1, 0), position, key, spec, bias), 0, 1)
        visible = softmax.visible_keys(key, position, kv_length, spec, unhidden)[:, None]  # [B, 1, S]
        return softmax.absorb(running, scores, visible, lambda weights: jnp.einsum("ktgs,skd->ktgd", weights, v))

    sinks = None if bias.sinks is None else bias.sinks[:, None]
    running = softmax.start(queries, sinks, spec)
    whole, rest = max(block.keys, keys.shape[2]), max(block.keys_left, keys.shape[2])
    count = (stop + rest - 1) // rest * rest // whole  # of whole blocks
    running = jax.lax.fori_loop(begin // whole, count, partial(absorb, whole), running)
    if rest < whole:
        left = jnp.maximum(begin, count * whole) // rest
        running = jax.lax.fori_loop(left, (stop + rest - 1) // rest, partial(absorb, rest), running)
    token = at + jnp.arange(size)
    mine = ((token >= first) & (token <= last))[:, None, None]
    attended = jnp.where(mine, softmax.finish(running), jax.lax.dynamic_slice_in_dim(out, at, size, axis=1))
    return jax.lax.dynamic_update_slice_in_dim(out, attended, at, axis=1)


def _key_block(
    keys: Array, values: Array, layer: ArrayLike, table: Array, length: int, j: Array
) -> tuple[Array, Array]:
    """Block `j` of `length` keys and their values, [S, K, D], of the sequence with page table `table` [W]."""
    width = length // keys.shape[2]
    pages = table.at[j * width + jnp.arange(width)].get(mode="clip")
    k, v = (as_floats(cache[layer, pages]).reshape(length, *cache.shape[3:]) for cache in (keys, values))
    return k, v
