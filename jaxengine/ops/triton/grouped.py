"""The product with a matrix in few bits, scaled by channels or by groups of inputs, as a Pallas kernel.

For `MANY_TOKENS` and more in 16 bits, the matrix is written out first (`dequantised`).

A program computes a tile of outputs for a tile of tokens (`grouped_tile`), over a share of the inputs (a split). Splits
leave f32 sums, which the last of them to finish adds up in order: results do not depend on who was last.

Legend: T tokens, G groups, M outputs and N tokens of a tile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.packing import NARROWEST, plane_of
from jaxengine.ops.triton import dequantised, grouped_tile
from jaxengine.ops.triton.grouped_tile import Matrix, Rows, Stored, compiler_params, divisor

# From so many, it is faster to write the weight out in 16 bits. The products of a layer of an 8B Llama in int4 took 256
# tokens 0.34 ms by the kernel and 0.39 so; 384 tokens 0.46 so (H200, by hand at f31b6c3f).
MANY_TOKENS = 384
PROGRAMS, PROGRAMS_OF_FEW = 400, 512  # about how many to start: of tiles of more than 16 tokens, and of 16
RESIDENT = 264  # programs with three stages that run at once, two on each of an H200's 132 multiprocessors
MAX_SPLITS = 8
WIDE = 16384  # outputs; from so many, there are large tiles enough
FULL = 96  # large tiles, from which on so many fill an H200
HOPPER_SHARED, A100_SHARED = 227, 163  # KiB


@dataclass(frozen=True)
class Tiles:
    """The static sizes of a product. Which are best was measured on an H200, at the shapes of an 8B Llama, for 16, 32,
    64 and 128 tokens: `python -m tests.gpu.run --only tilings`.

    outputs, tokens: of a program.
    splits: programs that share the inputs of a tile.
    """

    outputs: int
    tokens: int
    splits: int
    stored: Stored
    params: Any

    @classmethod
    def choose(
        cls, tokens: int, outputs: int, inputs: int, stored: Stored, shared: int, wide: bool, zeros: bool = False
    ) -> "Tiles":
        """Tiles for x [tokens, inputs], in f32 if `wide`, and a matrix [outputs, inputs], with `zeros` or without;
        `shared` as `product` has it.
        """
        many = outputs >= WIDE and tokens > 64
        if many and shared >= HOPPER_SHARED and not wide and (rows := _large(tokens, outputs, inputs, stored, zeros)):
            return cls(rows, 128, 1, stored, plt.CompilerParams(num_warps=8, num_stages=3))
        widest = 32 if wide else 128 if many and stored.planes == 2 and shared >= A100_SHARED else 64
        columns = max(16, min(widest, pl.next_power_of_2(tokens)))
        rows = divisor(outputs, 64)
        programs = outputs // rows * -(-tokens // columns)
        wanted = max(1, (PROGRAMS_OF_FEW if columns == 16 else PROGRAMS) // programs)
        steps = inputs // stored.step
        splits = min(MAX_SPLITS, steps, pl.next_power_of_2(wanted + 1) // 2)
        splits = -(-steps // -(-steps // splits))  # without those that would have no steps
        if wide:
            return cls(rows, columns, splits, stored, compiler_params(rows, columns))
        # A stage of 4 bits and 64 tokens takes 36 KB: of programs with three a multiprocessor runs two, with two three.
        # With four and 16 tokens, for [28672, 4096], it took 26.0 µs where with three it took 32.5 (H200).
        # Of many outputs three were faster all the same: for 128 tokens 86 µs instead of 107.
        two = programs * splits > RESIDENT and not (many and shared >= HOPPER_SHARED)
        stages = 2 if columns == 64 and (two or shared < A100_SHARED) else 4 if columns == 16 else 3
        warps = 2 if columns == 16 and splits == 1 else 4
        params = plt.CompilerParams(num_warps=warps, num_stages=stages if stored.planes == 4 else 3)
        return cls(rows, columns, splits, stored, params)


def _large(tokens: int, outputs: int, inputs: int, stored: Stored, zeros: bool) -> int:
    """Outputs of a tile with 128 tokens and eight warps; 0 where it does not fit or none was measured. For gate and up,
    [28672, 4096], and 128 tokens 128 outputs took int4 75 µs where 64 and 64 tokens took 110; 256 took int8 64 µs where
    64 and 128 tokens took 82 (H200).
    """
    if stored.planes == 4:  # 224 KiB; zeros take 16 more
        rows = 0 if zeros else 128
    elif stored.planes == 2:  # with scales of groups there are two sums, and 256 would spill
        full = outputs // 256 * -(-tokens // 128) >= FULL
        rows = 256 if stored.group == inputs and full and outputs % 256 == 0 else 128
    else:
        rows = 0
    return 0 if rows == 0 or outputs % rows else rows


@dataclass(frozen=True)
class Finish:
    """What becomes of the products with `parts` matrices: `activation` of them, or they themselves."""

    activation: Callable[..., Array] | None
    parts: int

    def store(self, out: Any, token: Array, column: Array, total: Array, used: Array) -> None:
        """`total`, f32 [M, N] in the order of `interleaved` → `out` at `token` [N] and `column` [M/parts]."""
        products = grouped_tile.apart(total, self.parts)
        made = products[0] if self.activation is None else self.activation(*products)
        mask = jnp.broadcast_to(used[None, :], made.shape)
        plt.store(out.at[token[None, :], column[:, None]], made.astype(out.dtype), mask=mask)


def unsupported(outputs: int, inputs: int, group: int, bits: int) -> str:
    """Why the kernel cannot multiply by a matrix of these sizes on one device; "" if it can. `group`: 0 for all."""
    if outputs % NARROWEST:
        return f"the kernel of grouped formats supports outputs in multiples of {NARROWEST}, not {outputs}"
    if group and inputs % group:
        return f"{inputs} inputs are no whole groups of {group}"
    if not (plane_of(inputs, group) if bits <= 4 else (group or inputs) % NARROWEST == 0):
        return f"{inputs} inputs in groups of {group or inputs} do not divide into planes of {NARROWEST} or more"
    return ""


def product(
    x: Array,
    values: Array,
    scales: Array,
    zeros: Array | None,
    *,
    plane: int,
    group: int,
    offset: int = 0,
    table: tuple[float, ...] = (),
    octets: str = "",
    shared: int = HOPPER_SHARED,
    activation: Callable[..., Array] | None = None,
    parts: int = 1,
    interpret: bool = False,
) -> Array:
    """x [T, in] times a matrix → [T, out] in x's type; or [T, out/parts], `activation` of the products with `parts`
    matrices, in f32, which lie one behind the other.

    Args:
        values: u16 [out, in/4] or, with 8 bits, [out, in/2] in planes of `plane`, or bytes [out, in] where that is 0.
        scales: [G, out], any floats.
        zeros: [G, out], integers that a code may be, or floats, or None.
        group: inputs of a group.
        offset: subtracted from every code unless zeros are integers.
        table: what each code stands for, rounded to x's type; codes of such a matrix have no zeros.
        octets: the dtype of 8-bit values before they were packed; empty for others.
        shared: KiB of shared memory that a program may take.
        interpret: run the kernel as plain JAX, on any device.
    """
    (tokens, inputs), outputs = x.shape, len(values)
    stored = Stored.of(inputs, plane, group, offset, table, interpret, octets)
    if tokens >= MANY_TOKENS and x.dtype.itemsize == 2:
        made = dequantised.product(x, values, scales, zeros, stored)
        if activation is None:
            return made
        return activation(*jnp.split(made.astype(jnp.float32), parts, 1)).astype(x.dtype)
    tiles = Tiles.choose(tokens, outputs, inputs, stored, shared, x.dtype.itemsize == 4, zeros is not None)
    grid = (outputs // tiles.outputs, -(-tokens // tiles.tokens), tiles.splits)
    finish = Finish(activation, parts)
    results = [jax.ShapeDtypeStruct((tokens, outputs // parts), x.dtype)]
    if tiles.splits > 1:
        results.append(jax.ShapeDtypeStruct((tiles.splits, tokens, outputs), jnp.float32))
    result, *_ = pl.pallas_call(
        partial(_kernel, tiles, finish),
        out_shape=results,
        grid=grid,
        compiler_params=tiles.params,
        interpret=interpret,
        name="grouped_product",
    )(x, values, scales, zeros, jnp.zeros(grid[0] * grid[1], jnp.int32))
    return result  # type: ignore[no-any-return]


def _kernel(
    tiles: Tiles,
    finish: Finish,
    x: Any,
    values: Any,
    scales: Any,
    zeros: Any,
    finished: Any,
    out: Any,
    *partials: Any,
) -> None:
    """One tile and split. `finished` counts a tile's splits that are done, and is 0 again when the kernel ends, so that
    every product can use the same array.
    """
    columns = tiles.outputs // finish.parts
    first = pl.program_id(0) * columns
    row = grouped_tile.interleaved(first, columns, finish.parts, out.shape[1])  # [M]
    token = pl.program_id(1) * tiles.tokens + jnp.arange(tiles.tokens)  # [N]
    split = pl.program_id(2)
    steps = x.shape[1] // tiles.stored.step
    share = -(-steps // tiles.splits)
    rows, matrix = Rows(x, token, token < x.shape[0]), Matrix(values, scales, zeros, row, row, 0)

    alone = scales.shape[0] == 1
    beyond = steps % tiles.splits > 0
    total = grouped_tile.product(tiles.stored, matrix, rows, split * share, share, alone, beyond)
    if alone:
        total = total * plt.load(scales.at[0, row]).astype(jnp.float32)[:, None]
    if not partials:
        finish.store(out, token, first + jnp.arange(columns), total, rows.used)
        return
    at, used = (token[None, :], row[:, None]), jnp.broadcast_to(rows.used[None, :], total.shape)
    plt.store(partials[0].at[(split, *at)], total, mask=used)
    if not tiles.stored.interpret:  # interpreted programs run one after the other
        plt.debug_barrier()  # all threads must have stored their part before the split counts as finished
    place = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
    before = plt.atomic_add(finished, (place,), jnp.int32(1))

    @pl.when(before == tiles.splits - 1)
    def _() -> None:
        loaded = [plt.load(partials[0].at[(each, *at)], mask=used, other=0.0) for each in range(tiles.splits)]
        merged = sum(loaded[1:], loaded[0])  # loads that a loop would wait for one by one
        finish.store(out, token, first + jnp.arange(columns), merged, rows.used)
        plt.store(finished.at[place], jnp.int32(0))
