"""The inner loop of both attention kernels: a tile of query rows against the keys of one sequence, block by block.

The number of rows of a tile is a power of two that suits the tensor cores. Row m is query head m % G of the tile's
query m // G, so the query heads of one key/value head share its loads. The softmax is a running one in base 2, in f32.
Key blocks that every query of the tile sees whole are not masked; those at the ends of the visible range are masked,
and keys that no query sees are not loaded. Queries of an image see keys behind their own, up to its end: what a query
sees then does not follow from the tile's position, and each brings its horizon. Arrays are passed flat, [rows, D],
because that is how a kernel addresses them.

Where values are the first part of keys (`latent`), both parts of a key are loaded once, and D is that of values.

Legend: L layers in the caches, T tokens, R rows of the batch, K key/value heads, G query heads each, D head dimension,
P elements of a key beside its value, M rows of a tile, S keys of a block.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.alibi import alibi
from jaxengine.ops.batch import AttentionBias, StepBatch, layer_of
from jaxengine.ops.spec import AttentionSpec

LOG2E = math.log2(math.e)
MASKED = -1e30  # a masked score
LOWEST = -1e29  # where a running maximum starts: above MASKED, so that exp2(MASKED - maximum) is 0 from the start
BLOCK_BYTES = 16384  # of a key block: two in flight, with their values and a tile of q, fit 99 KiB of shared memory

Running = tuple[Array, Array, Array]  # maximum [M], sum [M] and weighted values [M, D], all f32


class Inputs(NamedTuple):
    """What every attention kernel reads: arrays outside of the kernel, references inside."""

    tables: Any  # i32 [R, W]
    keys: Any  # [L·pages·page_size·K, D]
    values: Any  # like keys
    layer: Any  # i32 [1]
    slopes: Any  # f32 [K·G], or None
    sinks: Any  # f32 [K·G], or None
    relative: Any  # f32 [K·G·(2m+1)], or None
    horizon: Any = None  # i32 [T], or None: `StepBatch.horizon` where rows have several queries


def flatten(keys: Array, values: Array, batch: StepBatch, bias: AttentionBias) -> Inputs:
    slopes, sinks, by_distance = (
        None if each is None else each.reshape(-1) for each in (bias.slopes, bias.sinks, bias.relative)
    )
    horizon = batch.horizon if batch.ragged and batch.noncausal_length is None else None
    flat_keys, flat_values = (each.reshape(-1, each.shape[-1]) for each in (keys, values))
    return Inputs(batch.tables, flat_keys, flat_values, layer_of(batch), slopes, sinks, by_distance, horizon)


@dataclass(frozen=True)
class Problem:
    """The static arguments of a kernel."""

    kv_heads: int
    group: int
    dim: int
    pages: int
    page_size: int
    dtype: jnp.dtype
    spec: AttentionSpec
    interpret: bool
    causal: bool = True  # a query sees the keys up to its own; otherwise all queries of a row see the same keys
    furthest: int = 0  # m, the largest relative distance
    past_window: bool = False  # as of `StepBatch`
    rest: int = 0  # P; 0 where values are no part of keys
    sharing: int = 1  # so many of the K heads read one head of the caches

    @property
    def padded_dim(self) -> int:
        """Triton's arrays have sizes that are powers of two."""
        return pl.next_power_of_2(self.dim)

    @property
    def key_block(self) -> int:
        """S. From head_dim 128 on, a block takes the same shared memory whatever the head_dim."""
        return max(16, min(64, BLOCK_BYTES // (self.padded_dim * self.dtype.itemsize)))

    @property
    def cached_heads(self) -> int:
        return self.kv_heads // self.sharing

    def first_row(self, layer: Any) -> Array:
        """Where in the flat caches the layer begins whose number is in `layer`, i32 [1]."""
        first: Array = layer[0] * (self.pages * self.page_size * self.cached_heads)
        return first

    def columns(self) -> Array:
        return jnp.arange(self.padded_dim)  # [D]

    def in_dim(self) -> Array:
        return self.columns()[None, :] < self.dim  # [1, D]

    def q_rows(self, token: Array, head: Array, rows: int) -> Array:
        """Indices in the flat q of the rows of a tile whose first query is `token`."""
        m = jnp.arange(rows)
        return ((token + m // self.group) * self.kv_heads + head) * self.group + m % self.group  # [M]

    def head_rows(self, head: Array, rows: int) -> Array:
        return head * self.group + jnp.arange(rows) % self.group  # [M]


class Queries(NamedTuple):
    """A tile of queries."""

    first: Array  # [M, D]
    rest: Array | None = None  # [M, P], what meets a key beside its value


class Tile(NamedTuple):
    """What one program computes: queries at consecutive positions of one sequence, against a run of its key blocks."""

    row: Array  # i32 scalar, of the batch: its page table is read
    head: Array  # i32 scalar, key/value head
    token: Array  # i32 scalar, the first query
    queries: Array  # i32 scalar, how many queries; the rest of the tile is padding
    position: Array  # i32 scalar, of the first query
    kv_length: Array  # i32 scalar, how many keys of the sequence are in the cache
    first_row: Array  # i32 scalar, where in the flat caches the layer begins
    first_block: Array  # i32 scalar, of the key blocks
    end_block: Array  # i32 scalar, one past the last
    seen_by_all: Array | None = None  # i32 scalar, how many keys the first query sees; None = up to its own
    unhidden: Array | None = None  # i32 scalar, how many keys no window hides from the first query; None = none


def first_visible(problem: Problem, position: Array) -> Array:
    """Position of the first key that a query at `position` sees."""
    window = problem.spec.window
    return jnp.maximum(position + 1 - window, 0) if window else jnp.zeros_like(position)


def first_key(problem: Problem, position: Array, unhidden: Array | None) -> Array:
    """Position of the first key that any query of a tile sees."""
    first = first_visible(problem, position)
    return first if unhidden is None else jnp.where(unhidden > 0, 0, first)


def load_queries(problem: Problem, tile: Tile, q: Any, rows: int) -> Queries:
    """The tile's queries of the flat q [T·K·G, D + P]."""
    mine = (jnp.arange(rows) // problem.group < tile.queries)[:, None]
    at = problem.q_rows(tile.token, tile.head, rows)[:, None]
    first = plt.load(q.at[at, problem.columns()[None, :]], mask=mine & problem.in_dim(), other=0.0)
    if not problem.rest:
        return Queries(first)
    column = jnp.arange(pl.next_power_of_2(problem.rest))[None, :]
    rest = plt.load(q.at[at, problem.dim + column], mask=mine & (column < problem.rest), other=0.0)
    return Queries(first, rest)


def attend(problem: Problem, tile: Tile, inputs: Inputs, q: Queries, start: Running) -> Running:
    """Add the tile's key blocks to the running softmax `start`."""
    m = jnp.arange(q.first.shape[0])
    position = tile.position + m // problem.group  # [M]
    slope = None if inputs.slopes is None else slopes(problem, tile, inputs, len(m))
    horizon = None if inputs.horizon is None else horizons(problem, tile, inputs, len(m))

    last = tile.position + tile.queries - 1
    whole_from = (first_visible(problem, last) + problem.key_block - 1) // problem.key_block
    whole_from = jnp.clip(whole_from, tile.first_block, tile.end_block)
    seen_by_all = tile.seen_by_all
    if seen_by_all is None:
        seen_by_all = jnp.minimum(tile.position + 1, tile.kv_length) if problem.causal else tile.kv_length
    whole_to = jnp.clip(seen_by_all // problem.key_block, whole_from, tile.end_block)
    block = partial(_absorb_block, problem, tile, inputs, q, position, slope, horizon)
    if problem.spec.window:
        start = jax.lax.fori_loop(tile.first_block, whole_from, partial(block, True), start)
    running = jax.lax.fori_loop(whole_from, whole_to, partial(block, False), start)
    return jax.lax.fori_loop(whole_to, tile.end_block, partial(block, True), running)


def _absorb_block(
    problem: Problem,
    tile: Tile,
    inputs: Inputs,
    q: Queries,
    position: Array,
    slope: Array | None,
    horizon: Array | None,
    masked: bool,
    j: Array,
    running: Running,
) -> Running:
    """Add key block `j` to `running`. Unless `masked`, every query of the tile sees the whole block."""
    maximum, total, output = running
    key = j * problem.key_block + jnp.arange(problem.key_block)  # [S]
    k, v = _load_block(problem, tile, inputs, key, masked)
    dtype = q.first.dtype
    products = _dot(problem, q.first, k.astype(dtype), 1)
    if q.rest is not None:
        products, v = products + _dot(problem, q.rest, v.astype(dtype), 1), k
    scores = scaled_scores(problem, products)  # [M, S]
    distance = position[:, None] - key[None, :]
    if slope is not None:
        scores = scores + alibi(slope[:, None], position[:, None], key[None, :], problem.spec, LOG2E)
    if inputs.relative is not None:
        scores = scores + relative(problem, tile.head, inputs, distance)
    if masked:
        ahead = None if horizon is None else key[None, :] < horizon[:, None]
        scores = jnp.where(_visible(problem, tile, key, distance, ahead), scores, MASKED)
    new = jnp.maximum(maximum, scores.max(1))
    weights = jnp.exp2(scores - new[:, None])
    decay = jnp.exp2(maximum - new)
    output = output * decay[:, None] + _dot(problem, weights.astype(dtype), v.astype(dtype), 0)
    return new, total * decay + weights.sum(1), output


def _visible(problem: Problem, tile: Tile, key: Array, distance: Array, ahead: Array | None) -> Array:
    """bool [M, S] or [1, S]: which keys each query sees; `ahead` [M, S] are those up to its horizon."""
    visible = (key < tile.kv_length)[None, :]
    if problem.causal:
        behind = distance >= 0
        visible = visible & (behind if ahead is None else behind | ahead)
    if problem.spec.window:
        near = distance < problem.spec.window
        visible &= near | ahead if problem.past_window and ahead is not None else near
    return visible


def horizons(problem: Problem, tile: Tile, inputs: Inputs, rows: int) -> Array:
    """The horizons of the tile's rows, i32 [M]."""
    query = jnp.arange(rows) // problem.group
    horizon: Array = plt.load(inputs.horizon.at[tile.token + query], mask=query < tile.queries, other=0)
    return horizon


def slopes(problem: Problem, tile: Tile, inputs: Inputs, rows: int) -> Array:
    """The ALiBi slopes of the tile's rows, f32 [M]."""
    in_tile = jnp.arange(rows) < problem.group * tile.queries
    slope: Array = plt.load(inputs.slopes.at[problem.head_rows(tile.head, rows)], mask=in_tile, other=0.0)
    return slope


def relative(problem: Problem, head: Array, inputs: Inputs, distance: Array) -> Array:
    """The relative-position bias at `distance` [M, S], in base 2. Its table is a few KiB and stays cached."""
    nearest = jnp.clip(distance, -problem.furthest, problem.furthest) + problem.furthest
    rows = problem.head_rows(head, distance.shape[0])[:, None]
    return plt.load(inputs.relative.at[rows * (2 * problem.furthest + 1) + nearest]) * LOG2E


def _load_block(problem: Problem, tile: Tile, inputs: Inputs, key: Array, masked: bool) -> tuple[Array, Array]:
    """Keys and values [S, D] of positions `key`; 0 where no query of the tile sees them. Where values are part of keys,
    the values and the rest of the keys [S, P].
    """
    inside = None
    if masked:
        inside = (key >= first_key(problem, tile.position, tile.unhidden)) & (key < tile.kv_length)
    place = inputs.tables.at[tile.row, key // problem.page_size]
    page = plt.load(place, mask=inside, other=None if inside is None else 0)
    head = tile.head if problem.sharing == 1 else tile.head // problem.sharing
    at = (page * problem.page_size + key % problem.page_size) * problem.cached_heads + (tile.first_row + head)  # [S]
    keys = _load_rows(inputs.keys, at, inside, problem.dim)
    return keys, _load_rows(inputs.values, at, inside, problem.rest or problem.dim)


def _load_rows(cache: Any, at: Array, inside: Array | None, dim: int) -> Array:
    """Rows `at` [S] of a flat cache [.., dim], padded to a power of two; 0 where not `inside`."""
    padded = pl.next_power_of_2(dim)
    column, mask = jnp.arange(padded)[None, :], None
    if inside is not None:
        mask = inside[:, None] & (column < dim)
    elif dim != padded:
        mask = jnp.broadcast_to(column < dim, (len(at), padded))
    return plt.load(cache.at[at[:, None], column], mask=mask, other=None if mask is None else 0.0)


def scaled_scores(problem: Problem, products: Array) -> Array:
    """The products q·k scaled, soft-capped and in base 2."""
    scale, cap = problem.spec.scale_for(problem.dim), problem.spec.softcap
    if not cap:
        return products * (scale * LOG2E)
    return jnp.tanh(products * (scale / cap)) * (cap * LOG2E)


def _dot(problem: Problem, a: Array, b: Array, contract: int) -> Array:
    return matmul(a, b, contract, problem.interpret)


def matmul(a: Array, b: Array, contract: int, interpret: bool) -> Array:
    """a [M, X] times b, whose axis `contract` is X, in f32.

    f32 operands are multiplied as three products of tf32 halves, which comes near f32. One f32 product would not use
    the tensor cores and spills 38 KB of registers per thread in `prefill`; one tf32 product would be wrong by 1e-3.
    """
    f32 = a.dtype == jnp.float32 and not interpret
    precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if f32 else None
    contracted = (((1,), (contract,)), ((), ()))
    return jax.lax.dot_general(a, b, contracted, precision=precision, preferred_element_type=jnp.float32)
