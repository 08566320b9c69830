"""The product with a matrix whose inputs have scales in groups, as a Pallas kernel: 4-bit codes in planes, or 8 bits.

A program computes a tile of outputs for a tile of tokens, over a share of the inputs (a split). The weight is the left
operand: its codes go from registers to the tensor cores, once they are numbers. A code less a whole zero point is exact
in 16 bits, so it is the sum over a group, not the weight, that is scaled, in f32. What a zero point that is not whole
takes away is computed apart. Splits leave f32 sums, which the last of them to finish adds up in order: results do not
depend on who was last.

Codes become numbers by two instructions of PTX for two of them: a shift, and a `lop3` that keeps a nibble and puts the
exponent of 128 (bf16) or 1024 (f16) above it. What Triton makes of shifts and casts takes 4.8 to 7.9 instructions a
weight; the H200 has time for 3.5 while it reads 4 bits (4.3 TB/s, 132 SMs at 1.75 GHz).

Legend: T tokens, G groups, M outputs and N tokens of a tile, P inputs of a plane.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.packing import CODES, NARROWEST, plane_of
from jaxengine.ops.triton.tile import matmul

FEW_TOKENS = 64  # up to so many, reading the weight takes longest, and the inputs are split
PROGRAMS = 264  # two for each of 132 multiprocessors
MAX_SPLITS = 16
EXPONENT = {"bfloat16": (0x4300, 128), "float16": (0x6400, 1024)}  # bits above a nibble, and the number they add
NIBBLES = "0x000F000F"
DEPTH = 128  # inputs of a step with 8-bit values


@dataclass(frozen=True)
class Tiles:
    """The static sizes of a product.

    outputs, tokens: of a program.
    plane: inputs that are multiplied at once.
    planes: of a step; 4 share the words of packed codes.
    packed: whether values are 4-bit codes in words of 16 bits.
    group: inputs that share a scale.
    splits: programs that share the inputs of a tile.
    table: what codes stand for; empty where they are numbers.
    """

    outputs: int
    tokens: int
    plane: int
    planes: int
    packed: bool
    group: int
    splits: int
    table: tuple[float, ...]
    interpret: bool

    @classmethod
    def choose(
        cls,
        tokens: int,
        outputs: int,
        inputs: int,
        plane: int,
        group: int,
        table: tuple[float, ...] = (),
        most: int = 128,
        wide: bool = False,
        interpret: bool = False,
    ) -> "Tiles":
        """Tiles for x [tokens, inputs], in f32 if `wide`, and a matrix [outputs, inputs]; `plane` is 0 for 8 bits.

        `most` tokens are multiplied at once.
        """
        few = tokens <= FEW_TOKENS
        columns = max(16, min(32 if wide else most, pl.next_power_of_2(tokens)))
        rows = _divisor(outputs, 64 if wide or (few and outputs < 8192) else 128)
        depth, planes = (plane, CODES) if plane else (_divisor(group or inputs, DEPTH), 1)
        steps = inputs // (depth * planes)
        programs = outputs // rows * -(-tokens // columns)
        wanted = max(1, PROGRAMS // programs)
        splits = min(MAX_SPLITS, steps, pl.next_power_of_2(wanted + 1) // 2) if few else 1
        return cls(rows, columns, depth, planes, plane > 0, group or inputs, splits, table, interpret)

    @property
    def step(self) -> int:
        """Inputs of a step."""
        return self.plane * self.planes

    @property
    def params(self) -> Any:
        return plt.CompilerParams(
            num_warps=8 if self.outputs * self.tokens >= 128 * 64 else 4, num_stages=2 if self.tokens >= 64 else 3
        )


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
    most: int = 128,
    interpret: bool = False,
) -> Array:
    """x [T, in] times a matrix → [T, out] in x's type.

    Args:
        values: u16 [out, in/4] in planes of `plane`, or 8 bits [out, in] where that is 0.
        scales: [G, out], any floats.
        zeros: [G, out], integers that a code may be, or floats, or None.
        group: inputs of a group.
        offset: subtracted from every code where there are no zeros.
        table: what each code stands for, rounded to x's type; codes of such a matrix have no zeros.
        most: tokens that are multiplied at once: 128 take 152 KB of shared memory, 64 take 76.
        interpret: run the kernel as plain JAX, on any device.
    """
    (tokens, inputs), outputs = x.shape, len(values)
    tiles = Tiles.choose(tokens, outputs, inputs, plane, group, table, most, x.dtype.itemsize == 4, interpret)
    grid = (outputs // tiles.outputs, -(-tokens // tiles.tokens), tiles.splits)
    results = [jax.ShapeDtypeStruct((tokens, outputs), x.dtype)]
    if tiles.splits > 1:
        results.append(jax.ShapeDtypeStruct((tiles.splits, tokens, outputs), jnp.float32))
    made = pl.pallas_call(
        partial(_kernel, tiles, offset),
        out_shape=results,
        grid=grid,
        compiler_params=tiles.params,
        interpret=interpret,
        name="grouped_product",
    )(x, values, scales, zeros, jnp.zeros(grid[0] * grid[1], jnp.int32))
    result: Array = made[0]
    return result


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`: tiles that divide evenly need no masks."""
    return min(most, size & -size)


def _kernel(
    tiles: Tiles, offset: int, x: Any, values: Any, scales: Any, zeros: Any, finished: Any, out: Any, *partials: Any
) -> None:
    """One tile and split. `finished` counts a tile's splits that are done, and is 0 again when the kernel ends, so that
    every product can use the same array.
    """
    row = pl.program_id(0) * tiles.outputs + jnp.arange(tiles.outputs)  # [M]
    token = pl.program_id(1) * tiles.tokens + jnp.arange(tiles.tokens)  # [N]
    split = pl.program_id(2)
    steps = x.shape[1] // tiles.step
    share = -(-steps // tiles.splits)
    step = partial(_step, tiles, offset, x, values, scales, zeros, row, token)
    start = jnp.zeros((tiles.outputs, tiles.tokens), jnp.float32)
    total = jax.lax.fori_loop(split * share, jnp.minimum((split + 1) * share, steps), step, start)
    used = _used(token, x.shape[0], tiles.outputs)
    at = token[None, :], row[:, None]
    if not partials:
        plt.store(out.at[at], total.astype(out.dtype), mask=used)
        return
    plt.store(partials[0].at[(split, *at)], total, mask=used)
    if not tiles.interpret:  # interpreted programs run one after the other
        plt.debug_barrier()  # all threads must have stored their part before the split counts as finished
    place = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
    before = plt.atomic_add(finished, (place,), jnp.int32(1))

    @pl.when(before == tiles.splits - 1)
    def _() -> None:
        def add(other: Array, total: Array) -> Array:
            return total + plt.load(partials[0].at[(other, *at)], mask=used, other=0.0)

        merged = jax.lax.fori_loop(0, tiles.splits, add, start)
        plt.store(out.at[at], merged.astype(out.dtype), mask=used)
        plt.store(finished.at[place], jnp.int32(0))


def _used(token: Array, tokens: int, rows: int) -> Array:
    return jnp.broadcast_to((token < tokens)[None, :], (rows, len(token)))


def _step(
    tiles: Tiles,
    offset: int,
    x: Any,
    values: Any,
    scales: Any,
    zeros: Any,
    row: Array,
    token: Array,
    i: Array,
    total: Array,
) -> Array:
    """Add the products of step `i` to `total`, f32 [M, N]."""
    column = jnp.arange(tiles.plane)
    words = plt.load(values.at[row[:, None], (i * tiles.plane + column)[None, :]])  # [M, P]
    inside = jnp.broadcast_to((token < x.shape[0])[:, None], (len(token), tiles.plane))
    per_group = max(1, min(tiles.planes, tiles.group // tiles.plane))  # planes
    for first in range(0, tiles.planes, per_group):
        group = (i * tiles.step + first * tiles.plane) // tiles.group
        zero = None if zeros is None else plt.load(zeros.at[group, row])[:, None]  # [M, 1]
        whole = zero is not None and jnp.issubdtype(zero.dtype, jnp.integer)
        base = zero if whole else offset
        summed, inputs = jnp.zeros_like(total), jnp.zeros(len(token), jnp.float32)
        for plane in range(first, first + per_group):
            at = i * tiles.step + plane * tiles.plane + column
            part = plt.load(x.at[token[:, None], at[None, :]], mask=inside, other=0.0)  # [N, P]
            numbers = _numbers(tiles, words, plane, base, part.dtype)
            summed = summed + matmul(numbers, part, 1, tiles.interpret)
            inputs = inputs + part.astype(jnp.float32).sum(1)
        if zero is not None and not whole:  # no type of 16 bits holds the difference
            summed = summed - zero.astype(jnp.float32) * inputs[None, :]
        scale = plt.load(scales.at[group, row]).astype(jnp.float32)
        total = total + summed * scale[:, None]
    return total


def _numbers(tiles: Tiles, words: Array, plane: int, base: Any, dtype: jnp.dtype) -> Array:
    """[M, P] of `dtype`: the values of a plane less their zero points, exact."""
    if not tiles.packed:
        numbers = words.astype(dtype)
        return numbers if isinstance(base, int) and base == 0 else numbers - _as(base, dtype)
    if tiles.interpret or dtype.name not in EXPONENT:
        codes = (words.astype(jnp.int32) >> (4 * plane)) & 15
        return _looked_up(tiles.table, codes, dtype) if tiles.table else codes.astype(dtype) - _as(base, dtype)
    asm, added = assembly(plane, tiles.table, dtype)
    (raised,) = plt.elementwise_inline_asm(
        asm,
        args=[words],
        constraints="=r,r",
        pack=2,
        result_shape_dtypes=[jax.ShapeDtypeStruct(words.shape, dtype)],
    )
    return raised if tiles.table else raised - _as(base, dtype, added)


def assembly(plane: int, table: tuple[float, ...], dtype: jnp.dtype) -> tuple[str, int]:
    """PTX that makes two numbers of 16 bits, `$0`, of nibble `plane` of two words, `$1`; and what it adds to them."""
    registers = ".reg .b32 t, a, b, c, d, e, f;"
    shift = f"shr.b32 t, $1, {4 * plane};" if plane else "mov.b32 t, $1;"
    if table:
        return f"{{ {registers} {shift} {_table_asm(table, dtype)} }}", 0
    bits, added = EXPONENT[dtype.name]
    return f"{{ {registers} {shift} lop3.b32 $0, t, {NIBBLES}, 0x{bits:04X}{bits:04X}, 0xEA; }}", added


def _table_asm(table: tuple[float, ...], dtype: jnp.dtype) -> str:
    """Bytes of the entries are permuted into place (`prmt`): low and high bytes of entries 0 to 7 and 8 to 15 by three
    bits of each code, then those that its fourth bit chooses. 10 instructions a weight as compiled for an H200.
    """
    entries = np.asarray(table, np.float32).astype(dtype).view(np.uint16)
    (low_a, low_b), (high_a, high_b) = (_registers((entries >> shift & 255).tolist()) for shift in (0, 8))
    return f"""
        and.b32 t, t, {NIBBLES};
        shr.b32 a, t, 12;  lop3.b32 a, t, a, 0x77, 0xA8;  // 3 bits of each code, as a selector
        prmt.b32 b, {low_a}, a;  prmt.b32 c, {low_b}, a;
        prmt.b32 d, {high_a}, a;  prmt.b32 e, {high_b}, a;
        shl.b32 t, t, 4;  prmt.b32 f, t, t, 0x00A8;  // bytes of ones where the fourth bit is set
        lop3.b32 b, f, c, b, 0xCA;  lop3.b32 d, f, e, d, 0xCA;
        prmt.b32 $0, b, d, 0x5140;
    """


def _registers(octets: list[int]) -> tuple[str, str]:
    """16 bytes as operands of two `prmt`, eight each."""
    words = [sum(octet << (8 * place) for place, octet in enumerate(octets[i : i + 4])) for i in range(0, 16, 4)]
    return f"0x{words[0]:08X}, 0x{words[1]:08X}", f"0x{words[2]:08X}, 0x{words[3]:08X}"


def _looked_up(table: tuple[float, ...], codes: Array, dtype: jnp.dtype) -> Array:
    numbers = jnp.zeros(codes.shape, jnp.float32)
    for code, entry in enumerate(table):
        numbers = jnp.where(codes == code, entry, numbers)
    return numbers.astype(dtype)


def _as(base: Any, dtype: jnp.dtype, added: int = 0) -> Any:
    """A zero point and what was added to the codes, in `dtype`."""
    return (
        jnp.asarray(base + added, dtype) if isinstance(base, int) else (base.astype(jnp.float32) + added).astype(dtype)
    )
