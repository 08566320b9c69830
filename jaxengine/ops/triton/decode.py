"""Attention of rows of one query. A row's keys are split among several programs; the last to finish merges the results.

The most splits of a row are static. How many of them have work follows the row's length and how much there is in the
whole batch; the others return at once. Their partial results, f32, are the only extra memory. In a decode step the
last split of a row also rotates and writes the row's own key and value. It attends to them behind all others, before
they reach memory, so no program waits for that write, nor a load of keys for what comes of them.

Legend: as in `tile`; P splits of a row.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.alibi import alibi
from jaxengine.ops.batch import StepBatch, row_starts
from jaxengine.ops.cache import stored
from jaxengine.ops.triton.merge import Partials, keep, merge, store
from jaxengine.ops.triton.rotated_qkv import Projected, write
from jaxengine.ops.triton.tile import (
    LOG2E,
    LOWEST,
    Inputs,
    Problem,
    Queries,
    Running,
    Tile,
    attend,
    first_visible,
    load_queries,
    relative,
    scaled_scores,
    slopes,
)

PROGRAMS = 4096  # about how many to start, with those that return at once
BUSY = 1024  # about how many have work, if there is enough: a few per multiprocessor
SPLITS = (4, 32)  # fewest and most splits of a row
MIN_BLOCKS = 2  # key blocks of a split at least: a partial result costs as much as 4 keys
# Of latents a multiprocessor runs one or two programs, and a partial result of 32 heads costs as much as 57 keys.
LATENT_BUSY, LATENT_BLOCKS, LATENT_SPLITS = 256, 8, (2, 32)
LARGE, WIDE = 64, 256  # rows of a tile from which eight warps share it; of such rows fewer that are wider


class Rows(NamedTuple):
    """The rows of the batch as these kernels see them. i32 [R] each."""

    kv_length: Any  # how many keys the row's query sees; 0 for a row without work here
    token: Any  # index of the row's query; None if row r is token r


class Own(NamedTuple):
    """A row's own key and value in a decode step, as they are stored."""

    key: Array  # [D]
    value: Array  # [D]
    entry: Array  # i32 scalar, where in the flat caches they are written


def rows_of_step(batch: StepBatch) -> Rows:
    """The rows of a decode step: row r is token r."""
    real = jnp.arange(batch.position.shape[0]) < batch.tokens
    return Rows(jnp.where(real, batch.kv_length, 0), None)


def single_rows(batch: StepBatch) -> Rows:
    """The rows of a mixed step that have one query."""
    starts = row_starts(batch)
    token = jnp.minimum(starts[:-1], batch.position.shape[0] - 1)
    return Rows(jnp.where(starts[1:] - starts[:-1] == 1, batch.kv_length[token], 0), token)


def splits_for(rows: int, kv_heads: int, latents: bool = False) -> int:
    """P, the number of splits: a power of two."""
    programs, (fewest, most) = (LATENT_BUSY, LATENT_SPLITS) if latents else (PROGRAMS, SPLITS)
    return max(fewest, min(most, pl.next_power_of_2(programs // (rows * kv_heads) or 1)))


def least_blocks(problem: Problem, kv_length: Array) -> Array:
    """i32 [1]: key blocks of a split at least. A large batch fills the GPU without splits, whose partial results would
    have to be merged: 128 rows of 1100 tokens took 174 µs in four splits each, 142 in one (H200).
    """
    window, share = problem.spec.window, (LATENT_BUSY if problem.rest else BUSY) * problem.key_block
    seen = jnp.minimum(kv_length, window) if window else kv_length
    read = problem.kv_heads * jnp.sum(seen.astype(jnp.float32))  # 256 rows that share a million tokens pass 2^31
    least = LATENT_BLOCKS if problem.rest else MIN_BLOCKS
    return jnp.maximum(jnp.ceil(read / share).astype(jnp.int32), least)[None]


def tile_rows(group: int) -> int:
    """M, rows of a tile: the group's query heads, padded to the 16 rows that the tensor cores multiply at a time."""
    return max(16, pl.next_power_of_2(group))


def attend_step(problem: Problem, projected: Projected, inputs: Inputs, batch: StepBatch) -> tuple[Array, Array, Array]:
    """A whole decode step: the output [T·K·G, D], 0 for padding, and the caches, flat and written in place."""
    size = batch.position.shape[0] * problem.kv_heads * problem.group
    shapes = [jax.ShapeDtypeStruct(cache.shape, cache.dtype) for cache in (inputs.keys, inputs.values)]
    shapes.insert(0, jax.ShapeDtypeStruct((size, problem.dim), problem.dtype))
    out, keys, values = _call(problem, inputs, None, rows_of_step(batch), projected, shapes, {1: 1, 2: 2})
    return out, keys, values


def read_step(problem: Problem, q: Array, inputs: Inputs, batch: StepBatch) -> Array:
    """A decode step that writes no keys or values: the output [T·K·G, D], flat like q, 0 for padding."""
    shape = jax.ShapeDtypeStruct((len(q), problem.dim), q.dtype)
    (out,) = _call(problem, inputs, None, rows_of_step(batch), q, [shape], {})
    return out


def attend_rows(problem: Problem, q: Array, inputs: Inputs, rows: Rows, out: Array) -> Array:
    """Attention of a mixed step's `rows` of one query, into `out`, flat like q [T·K·G, D] and overwritten in place."""
    shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
    (out,) = _call(problem, inputs, out, rows, q, [shape], {len(jax.tree.leaves(inputs)): 0})
    return out


def _call(
    problem: Problem,
    inputs: Inputs,
    old: Array | None,
    rows: Rows,
    queries: Projected | Array,
    results: list[jax.ShapeDtypeStruct],
    aliases: dict[int, int],
) -> list[Array]:
    count, heads = len(rows.kv_length), problem.kv_heads
    splits = splits_for(count, heads, latents=problem.rest > 0)
    parts = count * heads * splits * problem.group
    numbers = jax.ShapeDtypeStruct((parts,), jnp.float32)
    partials = Partials(numbers, numbers, jax.ShapeDtypeStruct((parts, problem.dim), jnp.float32))
    made = pl.pallas_call(
        partial(_kernel, problem, splits),
        out_shape=(*results, partials),
        grid=(heads, count, splits),
        input_output_aliases=aliases,
        compiler_params=_params(problem, tile_rows(problem.group)),
        interpret=problem.interpret,
        name="paged_decode",
    )(inputs, old, rows, queries, least_blocks(problem, rows.kv_length), jnp.zeros(count * heads, jnp.int32))
    return list(made[:-1])


def _params(problem: Problem, rows: int) -> plt.CompilerParams:
    """Warps and stages for tiles of `rows`. Five stages leave a multiprocessor one program where three leave two: with
    three, 128 rows of 4100 tokens took 3 % less time (H200).
    """
    large = rows >= LARGE or rows * problem.padded_dim >= LARGE * WIDE
    return plt.CompilerParams(num_warps=8 if large else 4, num_stages=3)


def _token(rows: Rows, row: Array) -> Array:
    return row if rows.token is None else rows.token[row]


def _kernel(
    problem: Problem,
    splits: int,
    inputs: Inputs,
    old: Any,
    rows: Rows,
    queries: Any,
    least: Any,
    finished: Any,
    out_ref: Any,
    *written: Any,
) -> None:
    """One split of a row. `finished` counts the row's splits that are done. It is 0 again when the kernel ends, so that
    every layer can use the same array.
    """
    *caches, partials = written
    head, row, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    kv_length, token, m = rows.kv_length[row], _token(rows, row), tile_rows(problem.group)
    cached = kv_length - 1 if caches else kv_length
    first = first_visible(problem, kv_length - 1) // problem.key_block
    end = jnp.maximum((cached + problem.key_block - 1) // problem.key_block, first)
    blocks = jnp.maximum((end - first + splits - 1) // splits, least[0])
    used = jnp.maximum((end - first + blocks - 1) // blocks, 1)
    to = (token * problem.kv_heads + head) * problem.group  # in the output, the row's first query head

    @pl.when((kv_length > 0) & (split < used))
    def _() -> None:
        begin = first + split * blocks
        last = jnp.minimum(begin + blocks, end)
        origin = problem.first_row(inputs.layer)
        tile = Tile(row, head, token, jnp.int32(1), kv_length - 1, cached, origin, begin, last)
        own = _own_token(problem, tile, queries, caches) if caches else None
        q = Queries(queries.queries(problem, token, head, m)) if caches else load_queries(problem, tile, queries, m)
        running = attend(problem, tile, inputs, q, _start(problem, tile, inputs, split == 0, m))
        if own is not None:
            is_last = split == used - 1
            pl.when(is_last)(partial(_write, problem, own, caches))
            running = jax.lax.cond(
                is_last, partial(_absorb_own, problem, tile, inputs, q.first, own), _unchanged, running
            )

        @pl.when(used == 1)
        def _() -> None:
            _, total, output = running
            store(problem, out_ref, to, output / jnp.where(total == 0, 1, total)[:, None])

        @pl.when(used > 1)
        def _() -> None:
            place = row * problem.kv_heads + head
            keep(problem, partials, place * splits + split, running)
            _barrier(problem)  # all threads must have stored their part of the split before it counts as finished
            before = plt.atomic_add(finished, (place,), jnp.int32(1))

            @pl.when(before == used - 1)
            def _() -> None:
                merge(problem, splits, used, partials, place, out_ref, to)
                plt.store(finished.at[place], jnp.int32(0))

    if old is None:

        @pl.when((kv_length == 0) & (split == 0))
        def _() -> None:
            store(problem, out_ref, to, jnp.zeros((m, problem.padded_dim)))


def _start(problem: Problem, tile: Tile, inputs: Inputs, is_first: Array, m: int) -> Running:
    """The initial softmax. The first split's has the sink."""
    maximum, total, output = jnp.full(m, LOWEST), jnp.zeros(m), jnp.zeros((m, problem.padded_dim))
    if inputs.sinks is None:
        return maximum, total, output
    sink = plt.load(inputs.sinks.at[problem.head_rows(tile.head, m)]) * LOG2E
    return jnp.where(is_first, jnp.maximum(maximum, sink), maximum), jnp.where(is_first, 1.0, total), output


def _own_token(problem: Problem, tile: Tile, projected: Projected, caches: list[Any]) -> Own:
    """All its loads come before any store, which none would be moved across."""
    both = projected.key(problem, tile.token, tile.head), projected.value(problem, tile.token, tile.head)
    key, value = (stored(each, cache.dtype) for each, cache in zip(both, caches, strict=True))
    return Own(key, value, tile.first_row + projected.entry(problem, tile.token, tile.head))


def _absorb_own(problem: Problem, tile: Tile, inputs: Inputs, q: Array, own: Own, running: Running) -> Running:
    """Add the row's own token to `running`, as it is stored."""
    maximum, total, output = running
    key, value = (each.astype(q.dtype).astype(jnp.float32) for each in (own.key, own.value))
    score = scaled_scores(problem, (q.astype(jnp.float32) * key[None, :]).sum(1))  # [M]
    if problem.spec.alibi_scale:  # exact ALiBi adds nothing at distance 0
        score = score + alibi(slopes(problem, tile, inputs, len(q)), tile.position, tile.position, problem.spec, LOG2E)
    if inputs.relative is not None:
        score = score + relative(problem, tile.head, inputs, jnp.zeros((len(q), 1), jnp.int32)).sum(1)
    new = jnp.maximum(maximum, score)
    weight, decay = jnp.exp2(score - new), jnp.exp2(maximum - new)
    return new, total * decay + weight, output * decay[:, None] + weight[:, None] * value[None, :]


def _unchanged(running: Running) -> Running:
    return running


def _write(problem: Problem, own: Own, caches: list[Any]) -> None:
    for each, cache in zip((own.key, own.value), caches, strict=True):
        write(problem, own.entry, each, cache)


def _barrier(problem: Problem) -> None:
    if not problem.interpret:  # interpreted programs run one after the other
        plt.debug_barrier()
