"""Attention of rows of several queries. A program computes a tile of consecutive queries of one row.

The grid is static, but how many tiles a row needs is known only on the device. Row r uses the tiles from
start_r // n + r on, where n is the number of queries of a tile. These are enough, as ⌊a + b⌋ + 1 ≥ ⌊a⌋ + ⌈b⌉, and
T // n + R + 1 tiles are enough for all rows. The padding behind the real tokens counts as one more row, of output 0.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import StepBatch, row_starts
from jaxengine.ops.triton.tile import (
    BLOCK_BYTES,
    LOG2E,
    LOWEST,
    Inputs,
    Problem,
    Tile,
    attend,
    first_key,
    load_queries,
)

ROWS = 128  # M, unless shared memory or the group says otherwise: two warpgroups of 64, Hopper's smallest wgmma
MIN_WARPS, ROWS_PER_WARP = 4, 16  # fewer warps spill
WIDE = 256  # of a wider head 8 warps share a tile; 4 spilled up to 120 bytes
OF_LATENTS = 8  # warps
STAGES = 3


class Tiles(NamedTuple):
    """i32 [tiles] each."""

    row: Array
    token: Array  # the tile's first query
    queries: Array  # 0 for a tile without work
    position: Array  # the first query's
    kv_length: Array  # how many keys the last query sees; 0 for padding
    seen_by_all: Array | None = None  # how many keys the first query sees, where horizons say it
    unhidden: Array | None = None  # how many keys no window hides from the first query, where it hides not all alike


def tiles_of(batch: StepBatch, queries: int) -> Tiles:
    """The tiles of a mixed step, of `queries` queries each; rows of one query have none, unless its window may hide
    nothing, which only tiles know.
    """
    rows, tokens = batch.tables.shape[0], batch.position.shape[0]
    starts = row_starts(batch)  # [R + 1]
    stops = jnp.append(starts[1:], tokens)
    first_tiles = starts // queries + jnp.arange(rows + 1)
    tile = jnp.arange(tokens // queries + rows + 1)
    row = (first_tiles[None, :] <= tile[:, None]).sum(1, dtype=jnp.int32) - 1
    token = starts[row] + (tile - first_tiles[row]) * queries
    count = jnp.clip(stops[row] - token, 0, queries)
    real = row < rows
    if not batch.past_window:
        count = jnp.where(real & (stops[row] - starts[row] == 1), 0, count)
    token = jnp.minimum(token, tokens - 1)
    position = batch.position[token]
    kv_length = position + count if batch.noncausal_length is None else batch.noncausal_length[token]
    tiles = Tiles(jnp.minimum(row, rows - 1), token, count, position, jnp.where(real, kv_length, 0))
    if batch.horizon is None or batch.noncausal_length is not None:
        return tiles
    last = jnp.clip(token + count - 1, 0, tokens - 1)
    return tiles._replace(
        kv_length=jnp.where(real, batch.kv_length[last], 0),
        seen_by_all=batch.kv_length[token],
        unhidden=None if batch.unhidden is None else batch.unhidden[token],
    )


def longest_first(tiles: Tiles) -> Array:
    """i32 [tiles]: the order in which programs take the tiles. If the longest began last, it would finish alone.

    Taking tiles in the order of tokens is estimated to last 1.2 times as long for a prompt of 2048 tokens, 8 heads and
    132 multiprocessors, and 1.33 times for one of 1024 (a block of keys takes one unit of time, a program's start two).
    """
    return jnp.argsort(jnp.where(tiles.queries > 0, -tiles.kv_length, 1))


def tile_rows(problem: Problem) -> int:
    """M: at least the group; a tile of q fits in 32 KiB of shared memory, in f32 together with its tf32 halves."""
    fit = 4 * BLOCK_BYTES // (problem.padded_dim * problem.dtype.itemsize**2)
    return max(min(ROWS, fit), pl.next_power_of_2(problem.group))


def _warps(problem: Problem, rows: int) -> int:
    if problem.rest:
        return OF_LATENTS
    return max(MIN_WARPS if problem.dim <= WIDE else 2 * MIN_WARPS, rows // ROWS_PER_WARP)


def attend_tiles(problem: Problem, q: Array, inputs: Inputs, batch: StepBatch) -> Array:
    """Attention of a mixed step [T·K·G, D], flat like q. The output of rows of one query is left unwritten."""
    rows = tile_rows(problem)
    tiles = tiles_of(batch, rows // problem.group)
    return pl.pallas_call(
        partial(_kernel, problem, rows),
        out_shape=jax.ShapeDtypeStruct((len(q), problem.dim), q.dtype),
        grid=(problem.kv_heads, len(tiles.row)),
        compiler_params=plt.CompilerParams(num_warps=_warps(problem, rows), num_stages=STAGES),
        interpret=problem.interpret,
        name="paged_prefill",
    )(tiles, longest_first(tiles), q, inputs)


def _kernel(problem: Problem, rows: int, tiles: Tiles, order: Any, q: Any, inputs: Inputs, out_ref: Any) -> None:
    head, index = pl.program_id(0), order[pl.program_id(1)]
    queries = tiles.queries[index]

    @pl.when(queries > 0)
    def _() -> None:
        token, position, kv_length = tiles.token[index], tiles.position[index], tiles.kv_length[index]
        seen, unhidden = (None if each is None else each[index] for each in (tiles.seen_by_all, tiles.unhidden))
        first = first_key(problem, position, unhidden) // problem.key_block
        end = (kv_length + problem.key_block - 1) // problem.key_block
        origin = problem.first_row(inputs.layer)
        tile = Tile(tiles.row[index], head, token, queries, position, kv_length, origin, first, end, seen, unhidden)
        start = jnp.full(rows, LOWEST), jnp.zeros(rows), jnp.zeros((rows, problem.padded_dim))
        if inputs.sinks is not None:
            sink = plt.load(inputs.sinks.at[problem.head_rows(head, rows)]) * LOG2E
            start = sink, jnp.ones(rows), start[2]
        _, total, output = attend(problem, tile, inputs, load_queries(problem, tile, q, rows), start)
        output = output / jnp.where(total == 0, 1, total)[:, None]
        to = problem.q_rows(token, head, rows)
        mine = (jnp.arange(rows) // problem.group < queries)[:, None] & problem.in_dim()
        column = problem.columns()[None, :]
        plt.store(out_ref.at[to[:, None], column], output.astype(out_ref.dtype), mask=mine)
