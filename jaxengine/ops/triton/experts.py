"""The two products of the experts as Pallas kernels: a program computes a block of rows times a tile of columns.

A block's rows belong to one expert (`jaxengine/ops/blocks.py`). The kernels read each token's row and write each
pair's row in place, so rows are never gathered, sorted or padded in memory. A block without rows returns at once, so
only the weights of chosen experts are read, and only once if one block holds all rows of an expert. Programs run block
by block within a tile of columns: blocks of the same expert then find its weights in the L2 cache, where the tokens'
rows always fit (16 MB for 2048 tokens of 4096). How a tile is multiplied depends on the format: `expert_tiles`.

Lower bounds on an H200 (4.3 TB/s, 790 TFLOP/s measured): a Mixtral layer at batch 1 moves 2 experts of 352 MB, 164 µs;
a Qwen3-30B-A3B layer 8 of 9.4 MB, 18 µs. In 4 bits with groups of 128, 42 and 5 µs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.blocks import Blocks, shared_blocks, sorted_blocks
from jaxengine.ops.triton.expert_tiles import MAX_GROUPED_ROWS, MAX_ROWS, GroupedTiles, Place, Stack, WholeTiles
from jaxengine.ops.triton.grouped_tile import Stored
from jaxengine.ops.weight import Weight

FEW_TOKENS = 16  # up to so many, an expert's rows fit the smallest block, and pairs are grouped without sorting
MIN_ROWS = 16  # the fewest of the tensor cores
MAX_F32_ROWS = 32  # of a format with groups
MIN_WIDTH = 16

Tiles = WholeTiles | GroupedTiles


def unsupported(hidden: int, ffn: int) -> str:
    """Why the kernels cannot serve experts of width `ffn` on one device; "" if they can."""
    for name, size in (("hidden_size", hidden), ("expert width", ffn)):
        if size % MIN_WIDTH:
            return f"the experts' kernels support a {name} in multiples of {MIN_WIDTH}, the model has {size}"
    return ""


def apply(
    x: Array,
    chosen: Array,
    gate_up: Weight,
    down: Weight,
    activation: Callable[..., Array],
    bias: Array | None = None,
    interpret: bool = False,
) -> Array:
    """x [T, hidden] through the experts `chosen` i32 [T, k] → [T, k, hidden]; 0 for an expert out of range.

    Args:
        gate_up: a stack of [E, 2, F, hidden], or [E, 1, F, hidden] without a gate. Neither stack is input-major.
        down: of [E, hidden, F].
        activation: of the first product, or of gate and up.
        bias: [E, 2 or 1, F], added to the first products.
        interpret: run the kernels as plain JAX, on any device.

    Raises:
        ValueError: widths that the kernels do not support.
    """
    (count, inner, ffn), hidden = gate_up.values.shape[:3], x.shape[1]
    if problem := unsupported(hidden, ffn):
        raise ValueError(problem)
    blocks = blocks_of(chosen, count, min(_most_rows(x, gate_up), _most_rows(x, down)))
    rows, pairs = blocks.pairs.shape[1], chosen.size
    up = _tiles(gate_up, rows, ffn, hidden, x.dtype, inner, interpret)
    kernel = partial(_up_kernel, up, inner, activation, chosen.shape[1], pairs)
    h = _call("experts_up", kernel, up, (pairs, ffn), interpret)(blocks, x, _stack(gate_up, bias))
    out = _tiles(down, rows, hidden, ffn, x.dtype, 1, interpret)
    kernel = partial(_down_kernel, out, pairs)
    y = _call("experts_down", kernel, out, (pairs, hidden), interpret)(blocks, h, _stack(down))
    return jnp.where((chosen < count)[..., None], y.reshape(*chosen.shape, hidden), 0)


def _most_rows(x: Array, weight: Weight) -> int:
    """That a block may have, by what the product with `weight` needs of registers and shared memory."""
    if not weight.layout.grouped:
        return MAX_ROWS
    return MAX_F32_ROWS if x.dtype.itemsize == 4 else MAX_GROUPED_ROWS


def _tiles(weight: Weight, rows: int, out: int, depth: int, dtype: jnp.dtype, matrices: int, interpret: bool) -> Tiles:
    layout = weight.layout
    if not layout.grouped:
        return WholeTiles.choose(rows, out, depth, dtype, weight.values.dtype, matrices, interpret)
    assert layout.format is not None and weight.scales is not None
    group = depth // weight.scales.shape[layout.stacked]
    stored = Stored.of(depth, layout.plane, group, layout.format.offset, layout.format.table, interpret)
    return GroupedTiles.choose(rows, out, matrices, dtype.itemsize == 4, stored)


def _stack(weight: Weight, bias: Array | None = None) -> Stack:
    """The arrays of `weight` with as many axes as kernels address."""
    values, bias = weight.values.reshape(-1, weight.values.shape[-1]), None if bias is None else bias.reshape(-1)
    if not weight.layout.grouped:
        return Stack(values, None if weight.scales is None else weight.scales.reshape(-1), None, bias)
    scales, zeros = (
        None if each is None else each.reshape(each.shape[0] * each.shape[1], -1)
        for each in (weight.scales, weight.zeros)
    )
    return Stack(values, scales, zeros, bias)


def blocks_of(chosen: Array, count: int, most: int = MAX_ROWS) -> Blocks:
    """Blocks with about as many rows as an expert would get of evenly spread pairs, within a program's limits."""
    if len(chosen) <= FEW_TOKENS:
        return shared_blocks(chosen, count, MIN_ROWS)
    rows = max(MIN_ROWS, min(most, pl.next_power_of_2(chosen.size // count or 1)))
    return sorted_blocks(chosen.reshape(-1), count, rows)[0]


def _call(
    name: str, kernel: Callable[..., None], tiles: Tiles, shape: tuple[int, int], interpret: bool
) -> Callable[..., Array]:
    def call(blocks: Blocks, x: Array, stack: Stack) -> Array:
        return pl.pallas_call(  # type: ignore[no-any-return]
            kernel,
            out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
            grid=(len(blocks.expert), shape[1] // tiles.columns),
            compiler_params=tiles.params,
            interpret=interpret,
            name=name,
        )(blocks, x, stack)

    return call


def _place(tiles: Tiles, blocks: Blocks, pairs: int) -> Place:
    block = pl.program_id(0)
    row: Any = blocks.pairs.at[block, jnp.arange(tiles.rows)]
    pair = plt.load(row)
    first = pl.program_id(1) * tiles.columns
    return Place(pair, pair < pairs, blocks.expert[block], first, first + jnp.arange(tiles.columns))


def _up_kernel(
    tiles: Tiles,
    inner: int,
    activation: Callable[..., Array],
    used: int,
    pairs: int,
    blocks: Blocks,
    x: Any,
    stack: Stack,
    out: Any,
) -> None:
    """act(gate x, up x), or act(up x), of a block's rows: `x` [T, hidden]."""
    place = _place(tiles, blocks, pairs)

    @pl.when(place.pair.min() < pairs)
    def _() -> None:
        products = tiles.products(place, x, place.pair // used, stack, inner, out.shape[1])
        if stack.bias is not None:
            products = [each + _bias(tiles, place, stack, i, inner, out.shape[1]) for i, each in enumerate(products)]
        tiles.store(place, out, activation(*products))


def _bias(tiles: Tiles, place: Place, stack: Stack, matrix: int, count: int, width: int) -> Array:
    """f32, of the program's columns of one of an expert's `count` matrices, beside its products."""
    first = (place.expert * count + matrix) * width
    return tiles.across_rows(plt.load(stack.bias.at[first + place.column]).astype(jnp.float32))


def _down_kernel(tiles: Tiles, pairs: int, blocks: Blocks, h: Any, stack: Stack, out: Any) -> None:
    """`h` [P, F] times the block's matrix."""
    place = _place(tiles, blocks, pairs)

    @pl.when(place.pair.min() < pairs)
    def _() -> None:
        tiles.store(place, out, tiles.products(place, h, place.pair, stack, 1, out.shape[1])[0])
