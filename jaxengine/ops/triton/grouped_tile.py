"""The inner loop of both products with grouped formats, a matrix's and the experts': some outputs times some tokens.

The weight is the left operand: its codes go from registers to the tensor cores, once they are numbers. A code less a
whole zero point is exact in 16 bits, so it is the sum over a group, not the weight, that is scaled, in f32. What a zero
point that is not whole takes away is computed apart.

Legend: T tokens, M outputs and N tokens of a tile, P inputs of a plane.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import triton as plt

from jaxengine.ops.packing import codes_in_word
from jaxengine.ops.triton.tile import matmul
from jaxengine.ops.triton.unpacking import fma, plain, unpacked, unpacked_octets

DEPTH = 128  # inputs of a step with 8-bit values
EIGHT = 8  # outputs: rows i and i + 8 of the tensor cores' results are in the same thread


@dataclass(frozen=True)
class Stored:
    """How a matrix is stored; all of it is static.

    plane: inputs that are multiplied at once.
    planes: of a step; 4, or 2 with 8 bits, share the words of packed codes.
    packed: whether values are codes in words of 16 bits.
    group: inputs that share a scale.
    offset: subtracted from every code unless zeros are integers.
    table: what codes stand for; empty where they are numbers.
    octets: the dtype of 8-bit values before they were packed; empty for 4 bits.
    """

    plane: int
    planes: int
    packed: bool
    group: int
    offset: int
    table: tuple[float, ...]
    interpret: bool
    octets: str = ""

    @classmethod
    def of(
        cls,
        inputs: int,
        plane: int,
        group: int,
        offset: int,
        table: tuple[float, ...] = (),
        interpret: bool = False,
        octets: str = "",
    ) -> "Stored":
        """`plane` is 0 for values in bytes, `group` for one group of all `inputs`."""
        group = group or inputs
        depth, planes = (plane, codes_in_word(8 if octets else 4)) if plane else (divisor(group, DEPTH), 1)
        return cls(depth, planes, plane > 0, group, offset, table, interpret, octets)

    @property
    def step(self) -> int:
        """Inputs of a step."""
        return self.plane * self.planes

    @property
    def planes_of_group(self) -> int:
        """Planes of a step that share a scale."""
        return max(1, min(self.planes, self.group // self.plane))


class Rows(NamedTuple):
    """The tokens of a tile."""

    x: Any  # [T, in]
    row: Array  # i32 [N], of x
    used: Array  # bool [N]


class Matrix(NamedTuple):
    """The outputs of a tile."""

    values: Any  # [rows, in/4 or in/2] in planes, or [rows, in]
    scales: Any  # [groups, outputs]
    zeros: Any  # like scales, or None
    row: Array  # i32 [M], of values
    output: Array  # i32 [M], of scales and zeros
    group: Any  # i32, the first one


class Scaling(NamedTuple):
    """The scales and zero points of a step, as they are stored: an array [M] for each of its groups."""

    scales: tuple[Array, ...]
    zeros: tuple[Array, ...]


def interleaved(first: Any, columns: int, parts: int, width: int) -> Array:
    """i32 [parts·columns]: the outputs of a tile with `columns` from the `first` on of each of `parts` matrices, which
    lie one behind the other, `width` outputs each. They take turns, eight at a time: those of a column are then in the
    same thread.
    """
    m = jnp.arange(columns * parts)
    if parts == 1:  # Triton knows that these are consecutive
        return first + m
    return m // EIGHT % parts * width + first + m // (EIGHT * parts) * EIGHT + m % EIGHT


def apart(total: Array, parts: int) -> list[Array]:
    """f32 [columns, N] for each of `parts` matrices, of `total` [parts·columns, N] in the order of `interleaved`."""
    if parts == 1:
        return [total]
    turns = total.reshape(-1, parts, EIGHT, total.shape[1])
    number = jax.lax.broadcasted_iota(jnp.int32, turns.shape, 1)
    return [jnp.where(number == i, turns, 0).sum(1).reshape(-1, total.shape[1]) for i in range(parts)]


def divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`: tiles that divide evenly need no masks."""
    return min(most, size & -size)


def compiler_params(outputs: int, tokens: int) -> Any:
    """For a tile of so many outputs and tokens."""
    return plt.CompilerParams(num_warps=8 if outputs * tokens >= 128 * 64 else 4, num_stages=2 if tokens >= 64 else 3)


def product(
    stored: Stored, matrix: Matrix, rows: Rows, first: Any, count: int, alone: bool = False, beyond: bool = False
) -> Array:
    """f32 [M, N]: the outputs of a tile times its tokens, over `count` steps from the `first` on; not scaled if the one
    scale of a channel is `alone`. If the last of them may lie `beyond` the inputs, those add nothing.

    That the number of steps is static matters: else ptxas, which cannot know that there is one, lets each instruction
    of the tensor cores wait for the one before, if they all add to the same sum.

    A step loads the scales of the next. Triton loads ahead by itself what a thread needs four bytes of or more; for a
    scale of two a program would stand still as long as the memory takes to answer, once for each group.
    """
    end = rows.x.shape[1] // stored.step

    def step(i: Array, carry: tuple[Array, Scaling]) -> tuple[Array, Scaling]:
        total, scaling = carry
        at, used = first + i, rows
        following = _scaling(stored, matrix, jnp.minimum(at + 1, end - 1), alone)
        if beyond:
            at, used = jnp.minimum(at, end - 1), rows._replace(used=rows.used & (at < end))
        return _add_step(stored, matrix, used, at, scaling, total), following

    start = jnp.zeros((len(matrix.row), len(rows.row)), jnp.float32)
    scaling = _scaling(stored, matrix, jnp.minimum(first, end - 1), alone)
    total, _ = jax.lax.fori_loop(0, count, step, (start, scaling))
    return total


def _scaling(stored: Stored, matrix: Matrix, i: Array, alone: bool) -> Scaling:
    """Of step `i`. `alone`: without scales."""
    groups = [
        matrix.group + (i * stored.step + first * stored.plane) // stored.group
        for first in range(0, stored.planes, stored.planes_of_group)
    ]
    scales, zeros = (
        () if each is None else tuple(plt.load(each.at[group, matrix.output]) for group in groups)
        for each in (None if alone else matrix.scales, matrix.zeros)
    )
    return Scaling(scales, zeros)


def _add_step(stored: Stored, matrix: Matrix, rows: Rows, i: Array, scaling: Scaling, total: Array) -> Array:
    """`total`, f32 [M, N], with the product of step `i`; not scaled if there are no scales."""
    column = jnp.arange(stored.plane)
    words = plt.load(matrix.values.at[matrix.row[:, None], (i * stored.plane + column)[None, :]])  # [M, P]
    inside = jnp.broadcast_to(rows.used[:, None], (len(rows.used), stored.plane))
    for place, first in enumerate(range(0, stored.planes, stored.planes_of_group)):
        zero = scaling.zeros[place][:, None] if scaling.zeros else None  # [M, 1]
        whole = zero is not None and jnp.issubdtype(zero.dtype, jnp.integer)
        base = zero if whole else stored.offset
        summed, inputs = jnp.zeros_like(total) if scaling.scales else total, jnp.zeros(len(rows.used), jnp.float32)
        for plane in range(first, first + stored.planes_of_group):
            at = i * stored.step + plane * stored.plane + column
            part = plt.load(rows.x.at[rows.row[:, None], at[None, :]], mask=inside, other=0.0)  # [N, P]
            made = numbers(stored, words, plane, base, part.dtype)
            summed = summed + matmul(made, part, 1, stored.interpret)
            inputs = inputs + part.astype(jnp.float32).sum(1)
        if zero is not None and not whole:  # no type of 16 bits holds the difference
            summed = summed - zero.astype(jnp.float32) * inputs[None, :]
        if scaling.scales:
            summed = fma(summed, scaling.scales[place].astype(jnp.float32)[:, None], total, stored.interpret)
        total = summed
    return total


def numbers(stored: Stored, words: Array, plane: int, base: Any, dtype: jnp.dtype) -> Array:
    """[M, P] of `dtype`: the values of a plane less `base`."""
    if stored.octets:
        return unpacked_octets(words, plane, base, stored.octets, dtype, stored.interpret)
    if stored.packed:
        return unpacked(words, plane, base, stored.table, dtype, stored.interpret)
    return plain(words, base, dtype)
