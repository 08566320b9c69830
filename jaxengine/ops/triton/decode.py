"""Rows of one query: several programs share a row's keys, and a second kernel merges their partial results.

How many programs may share a row is static, so that the grid fills the GPU at any batch size; how many do follows the
row's length, and the others return at once. Their partial results, f32, are all the memory this takes.

Legend: as in `tile`; P splits of a row.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import AttentionBatch
from jaxengine.ops.triton.tile import LOG2E, LOWEST, Inputs, Problem, Tile, attend, first_visible

PROGRAMS = 4096  # about how many to start: a few per multiprocessor even when most rows are short
SPLITS = (4, 32)  # fewest and most programs that share a row
LEAST_BLOCKS = 2  # key blocks below which a row is not split further: a partial result costs as much as 4 keys
WARPS, STAGES = 4, 5
MERGE_WARPS = 4


class Rows(NamedTuple):
    """What each row of the batch has for these kernels. i32 [R] each."""

    keys: Any  # how many keys lie before the end of its query; 0 if the row has nothing here
    token: Any  # its query; None where row r is token r


def rows_of_step(batch: AttentionBatch) -> Rows:
    """Of a decode step: row r is token r."""
    real = jnp.arange(batch.position.shape[0]) < batch.tokens
    return Rows(jnp.where(real, batch.position + 1, 0), None)


def single_rows(batch: AttentionBatch) -> Rows:
    """Of a mixed step: the rows that are one query."""
    starts = row_starts(batch)
    token = jnp.minimum(starts[:-1], batch.position.shape[0] - 1)
    return Rows(jnp.where(starts[1:] - starts[:-1] == 1, batch.position[token] + 1, 0), token)


def row_starts(batch: AttentionBatch) -> Array:
    """i32 [R + 1]: each row's first token; the last is the first token of the padding."""
    rows = jnp.arange(batch.tables.shape[0] + 1)
    return (batch.row[None, :] < rows[:, None]).sum(1, dtype=jnp.int32)


def splits_for(rows: int, kv_heads: int) -> int:
    """P, a power of two."""
    return max(SPLITS[0], min(SPLITS[1], pl.next_power_of_2(PROGRAMS // (rows * kv_heads) or 1)))


def tile_rows(group: int) -> int:
    """M. The tensor cores multiply 16 rows at a time, so a smaller group is padded; the row's keys are read once."""
    return max(16, pl.next_power_of_2(group))


def attend_rows(problem: Problem, inputs: Inputs, rows: Rows, out: Array | None) -> Array:
    """Attention of `rows`, flat like q. Other tokens keep what `out` has; without `out` every row's token is written.

    Args:
        out: [T·K·G, D], overwritten in place.
    """
    count, heads = len(rows.keys), problem.kv_heads
    splits = splits_for(count, heads)
    parts = count * heads * splits * problem.group
    numbers = jax.ShapeDtypeStruct((parts,), jnp.float32)
    outputs = jax.ShapeDtypeStruct((parts, problem.dim), jnp.float32)
    partials = pl.pallas_call(
        partial(_split_kernel, problem, splits),
        out_shape=(numbers, numbers, outputs),
        grid=(heads, count, splits),
        compiler_params=plt.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=problem.interpret,
        name="paged_decode",
    )(rows, inputs)
    return pl.pallas_call(
        partial(_merge_kernel, problem, splits),
        out_shape=jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype),
        grid=(heads * problem.group, count),
        input_output_aliases={} if out is None else {0: 0},
        compiler_params=plt.CompilerParams(num_warps=MERGE_WARPS),
        interpret=problem.interpret,
        name="paged_decode_merge",
    )(out, rows, inputs.sinks, partials)


def _token(rows: Rows, row: Array) -> Array:
    return row if rows.token is None else rows.token[row]


def _shares(problem: Problem, splits: int, keys: Array) -> tuple[Array, Array, Array]:
    """First key block of a row with `keys` keys, one past its last, and the blocks of each split."""
    first = first_visible(problem, keys - 1) // problem.key_block
    end = (keys + problem.key_block - 1) // problem.key_block
    return first, end, jnp.maximum((end - first + splits - 1) // splits, LEAST_BLOCKS)


def _split_kernel(
    problem: Problem, splits: int, rows: Rows, inputs: Inputs, maximum_ref: Any, total_ref: Any, output_ref: Any
) -> None:
    head, row, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    keys = rows.keys[row]
    first, end, share = _shares(problem, splits, keys)
    first = first + split * share

    @pl.when(first < end)
    def _() -> None:
        m = tile_rows(problem.group)
        tile = Tile(row, head, _token(rows, row), jnp.int32(1), keys - 1, first, jnp.minimum(first + share, end))
        start = jnp.full(m, LOWEST), jnp.zeros(m), jnp.zeros((m, problem.padded_dim))
        maximum, total, output = attend(problem, tile, inputs, m, start)
        at = ((row * problem.kv_heads + head) * splits + split) * problem.group + jnp.arange(m)  # [M]
        mine = jnp.arange(m) < problem.group
        plt.store(maximum_ref.at[at], maximum, mask=mine)
        plt.store(total_ref.at[at], total, mask=mine)
        column = jnp.arange(problem.padded_dim)[None, :]
        plt.store(output_ref.at[at[:, None], column], output, mask=mine[:, None] & problem.in_dim())


def _merge_kernel(problem: Problem, splits: int, old: Any, rows: Rows, sinks: Any, partials: Any, out_ref: Any) -> None:
    """One query head of one row: the splits' outputs, each weighed by how its maximum compares with the highest."""
    maximum_ref, total_ref, output_ref = partials
    query_head, row = pl.program_id(0), pl.program_id(1)
    head, g = query_head // problem.group, query_head % problem.group
    keys = rows.keys[row]
    first, end, share = _shares(problem, splits, keys)

    @pl.when((keys > 0) | (old is None))
    def _() -> None:
        split = jnp.arange(splits)
        used = first + split * share < end  # [P]
        at = ((row * problem.kv_heads + head) * splits + split) * problem.group + g
        column = jnp.arange(problem.padded_dim)
        maximum = plt.load(maximum_ref.at[at], mask=used, other=LOWEST)
        total = plt.load(total_ref.at[at], mask=used, other=0.0)
        mask = used[:, None] & problem.in_dim()
        output = plt.load(output_ref.at[at[:, None], column[None, :]], mask=mask, other=0.0)  # [P, D]
        highest = maximum.max(0)
        if sinks is not None:
            sink = sinks[query_head] * LOG2E
            highest = jnp.maximum(highest, sink)
        weights = jnp.exp2(maximum - highest)  # [P]
        total = (weights * total).sum(0)
        if sinks is not None:
            total += jnp.exp2(sink - highest)
        merged = (weights[:, None] * output).sum(0) / jnp.where(total == 0, 1, total)
        to = _token(rows, row) * (problem.kv_heads * problem.group) + query_head
        plt.store(out_ref.at[to, column], merged.astype(out_ref.dtype), mask=column < problem.dim)
