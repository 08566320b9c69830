"""The two products of the experts as Pallas kernels: a program computes a block of rows times a tile of columns.

A block's rows belong to one expert (`jaxengine/ops/blocks.py`). The kernels read each token's row and write each
pair's row in place, so rows are never gathered, sorted or padded in memory. A block without rows returns at once, so
only the weights of chosen experts are read, and only once if one block holds all rows of an expert. Programs run block
by block within a tile of columns: blocks of the same expert then find its weights in the L2 cache, where the tokens'
rows always fit (16 MB for 2048 tokens of 4096).

Lower bounds on an H200 (4.3 TB/s, 790 TFLOP/s measured): a Mixtral layer at batch 1 moves 2 experts of 352 MB, 164 µs;
a Qwen3-30B-A3B layer 8 of 9.4 MB, 18 µs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.blocks import Blocks, shared_blocks, sorted_blocks
from jaxengine.ops.triton.tile import matmul

FEW_TOKENS = 16  # up to so many, an expert's rows fit the smallest block, and pairs are grouped without sorting
MIN_BLOCK, MAX_BLOCK = 16, 128  # rows: the fewest of the tensor cores, and two warpgroups of 64
MIN_WIDTH = 16


@dataclass(frozen=True)
class Tiles:
    """The static sizes of a product: rows, columns and depth that a program multiplies at a time."""

    rows: int
    columns: int
    depth: int
    interpret: bool

    @classmethod
    def choose(
        cls, rows: int, out: int, depth: int, dtype: jnp.dtype, stored: jnp.dtype, matrices: int, interpret: bool
    ) -> "Tiles":
        """Tiles for a product of width `out` and depth `depth` that reads `matrices` matrices at once.

        With few rows tiles are narrow, so that there are enough programs to keep the memory busy; with many they have
        the size that suits the tensor cores.
        """
        few = rows < 64
        columns = (32 if few else 128 if rows == MAX_BLOCK else 64) // (1 if few else matrices)
        deep = 256 // stored.itemsize if few else 128 // dtype.itemsize
        return cls(rows, _divisor(out, columns), _divisor(depth, deep), interpret)

    @property
    def params(self) -> Any:
        return plt.CompilerParams(num_warps=8 if self.rows == MAX_BLOCK else 4, num_stages=4 if self.rows < 64 else 3)


def unsupported(hidden: int, ffn: int) -> str:
    """Why the kernels cannot serve experts of width `ffn` on one device; "" if they can."""
    for name, size in (("hidden_size", hidden), ("expert width", ffn)):
        if size % MIN_WIDTH:
            return f"the experts' kernels support a {name} in multiples of {MIN_WIDTH}, the model has {size}"
    return ""


def apply(
    x: Array,
    chosen: Array,
    gate_up: Array,
    down: Array,
    activation: Callable[[Array], Array],
    scales: tuple[Array, Array] | None = None,
    interpret: bool = False,
) -> Array:
    """x [T, hidden] through the experts `chosen` i32 [T, k] → [T, k, hidden]; 0 for an expert out of range.

    Args:
        gate_up: [E, 2, F, hidden], or [E, 1, F, hidden] without a gate.
        down: [E, hidden, F].
        scales: of matrices in 8 bits, f32: [E, 2 or 1, F] and [E, hidden].
        interpret: run the kernels as plain JAX, on any device.

    Raises:
        ValueError: widths that the kernels do not support.
    """
    count, inner, ffn, hidden = gate_up.shape
    if problem := unsupported(hidden, ffn):
        raise ValueError(problem)
    blocks = blocks_of(chosen, count)
    rows, pairs = blocks.pairs.shape[1], chosen.size
    up_scale, down_scale = scales or (None, None)
    up = Tiles.choose(rows, ffn, hidden, x.dtype, gate_up.dtype, inner, interpret)
    kernel = partial(_up_kernel, up, inner, activation, chosen.shape[1], pairs)
    h = _call("experts_up", kernel, up, (pairs, ffn))(blocks, x, gate_up.reshape(-1, hidden), _flat(up_scale))
    out = Tiles.choose(rows, hidden, ffn, x.dtype, down.dtype, 1, interpret)
    kernel = partial(_down_kernel, out, pairs)
    y = _call("experts_down", kernel, out, (pairs, hidden))(blocks, h, down.reshape(-1, ffn), _flat(down_scale))
    return jnp.where((chosen < count)[..., None], y.reshape(*chosen.shape, hidden), 0)


def _flat(scale: Array | None) -> Array | None:
    return None if scale is None else scale.reshape(-1)


def blocks_of(chosen: Array, count: int) -> Blocks:
    """Blocks with about as many rows as an expert would get of evenly spread pairs, within a program's limits."""
    if len(chosen) <= FEW_TOKENS:
        return shared_blocks(chosen, count, MIN_BLOCK)
    rows = max(MIN_BLOCK, min(MAX_BLOCK, pl.next_power_of_2(chosen.size // count or 1)))
    return sorted_blocks(chosen.reshape(-1), count, rows)[0]


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`: tiles that divide evenly need no masks."""
    return min(most, size & -size)


def _call(name: str, kernel: Callable[..., None], tiles: Tiles, shape: tuple[int, int]) -> Callable[..., Array]:
    def call(blocks: Blocks, x: Array, matrices: Array, scale: Array | None) -> Array:
        return pl.pallas_call(  # type: ignore[no-any-return]
            kernel,
            out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
            grid=(len(blocks.expert), shape[1] // tiles.columns),
            compiler_params=tiles.params,
            interpret=tiles.interpret,
            name=name,
        )(blocks, x, matrices, scale)

    return call


class Place(NamedTuple):
    """What one program computes."""

    pair: Array  # i32 [B], of each row
    used: Array  # bool [B], whether the row has a pair
    expert: Array  # i32 scalar
    column: Array  # i32 [columns]


def _place(tiles: Tiles, blocks: Blocks, pairs: int) -> Place:
    block = pl.program_id(0)
    row: Any = blocks.pairs.at[block, jnp.arange(tiles.rows)]
    pair = plt.load(row)
    column = pl.program_id(1) * tiles.columns + jnp.arange(tiles.columns)
    return Place(pair, pair < pairs, blocks.expert[block], column)


def _up_kernel(
    tiles: Tiles,
    inner: int,
    activation: Callable[[Array], Array],
    used: int,
    pairs: int,
    blocks: Blocks,
    x: Any,
    matrices: Any,
    scale: Any,
    out: Any,
) -> None:
    """act(gate x) · up x, or act(up x), of a block's rows: `x` [T, hidden], `matrices` [E·inner·F, hidden]."""
    place, ffn = _place(tiles, blocks, pairs), out.shape[1]

    @pl.when(place.pair.min() < pairs)
    def _() -> None:
        first = place.expert * inner * ffn
        starts = [first + i * ffn for i in range(inner)]
        products = _products(tiles, place, x, place.pair // used, matrices, scale, starts)
        activated = activation(products[0])
        _store(place, out, activated * products[1] if inner == 2 else activated)


def _down_kernel(tiles: Tiles, pairs: int, blocks: Blocks, h: Any, matrices: Any, scale: Any, out: Any) -> None:
    """`h` [P, F] times the block's matrix of `matrices` [E·hidden, F]."""
    place = _place(tiles, blocks, pairs)

    @pl.when(place.pair.min() < pairs)
    def _() -> None:
        start = place.expert * out.shape[1]
        _store(place, out, _products(tiles, place, h, place.pair, matrices, scale, [start])[0])


def _products(
    tiles: Tiles, place: Place, x: Any, row: Array, matrices: Any, scale: Any, starts: list[Array]
) -> list[Array]:
    """f32 [B, columns] for each of `starts`: rows `row` of `x` times the program's columns of the matrix at `start`."""

    def step(i: Array, sums: list[Array]) -> list[Array]:
        depth = (i * tiles.depth + jnp.arange(tiles.depth))[None, :]
        rows = plt.load(x.at[row[:, None], depth], mask=_across(place.used, tiles.depth), other=0.0)  # [B, depth]
        parts = [plt.load(matrices.at[(start + place.column)[:, None], depth]) for start in starts]  # [columns, depth]
        products = [matmul(rows, part.astype(rows.dtype), 1, tiles.interpret) for part in parts]
        return [total + part for total, part in zip(sums, products, strict=True)]

    zeros = [jnp.zeros((tiles.rows, tiles.columns), jnp.float32) for _ in starts]
    sums = jax.lax.fori_loop(0, x.shape[1] // tiles.depth, step, zeros)
    if scale is None:
        return sums
    factors = [plt.load(scale.at[start + place.column]) for start in starts]  # [columns]
    return [total * factor[None, :] for total, factor in zip(sums, factors, strict=True)]


def _store(place: Place, out: Any, values: Array) -> None:
    to = out.at[place.pair[:, None], place.column[None, :]]
    plt.store(to, values.astype(out.dtype), mask=_across(place.used, values.shape[1]))


def _across(used: Array, columns: int) -> Array:
    return jnp.broadcast_to(used[:, None], (len(used), columns))
