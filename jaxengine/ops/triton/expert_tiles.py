"""The inner loops of the experts' kernels: some rows, which share an expert, times a tile of that expert's columns.

`WholeTiles` reads floats, and 8 bits with a scale for each channel. `GroupedTiles` reads formats with groups, by the
loop that it shares with the product of a single matrix (`grouped_tile`); its products are turned, [columns, rows].

Legend: E experts, B rows of a block, G groups.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import triton as plt

from jaxengine.ops.triton import grouped_tile
from jaxengine.ops.triton.grouped_tile import Matrix, Rows, Stored, compiler_params, divisor
from jaxengine.ops.triton.tile import matmul

MAX_ROWS = 128  # two warpgroups of 64
MAX_GROUPED_ROWS = 64  # of 128 some registers spill (JAX 0.10.2)


class Stack(NamedTuple):
    """The matrices of all experts. An expert has `count` of `width` columns each, one behind the other."""

    values: Any  # [E·count·width, in], or [E·count·width, in/4] in planes
    scales: Any  # of channels [E·count·width], of groups [E·G, count·width], or None
    zeros: Any  # of groups, like scales, or None
    bias: Any = None  # of channels, or None


class Place(NamedTuple):
    """What one program computes."""

    pair: Array  # i32 [B], of each row
    used: Array  # bool [B], whether the row has a pair
    expert: Array  # i32 scalar
    first: Array  # i32 scalar, column
    column: Array  # i32 [columns]


@dataclass(frozen=True)
class WholeTiles:
    """The static sizes of a product: rows, columns and depth that a program multiplies at a time."""

    rows: int
    columns: int
    depth: int
    interpret: bool

    @classmethod
    def choose(
        cls, rows: int, out: int, depth: int, dtype: jnp.dtype, stored: jnp.dtype, matrices: int, interpret: bool
    ) -> "WholeTiles":
        """Tiles for a product of width `out` and depth `depth` that reads `matrices` matrices at once.

        With few rows tiles are narrow, so that there are enough programs to keep the memory busy; with many they have
        the size that suits the tensor cores.
        """
        few = rows < 64
        columns = (32 if few else 128 if rows == MAX_ROWS else 64) // (1 if few else matrices)
        deep = 256 // stored.itemsize if few else 128 // dtype.itemsize
        return cls(rows, divisor(out, columns), divisor(depth, deep), interpret)

    @property
    def params(self) -> Any:
        return plt.CompilerParams(num_warps=8 if self.rows == MAX_ROWS else 4, num_stages=4 if self.rows < 64 else 3)

    def products(self, place: Place, x: Any, row: Array, stack: Stack, count: int, width: int) -> list[Array]:
        """f32 [B, columns] for each of an expert's `count` matrices: rows `row` of `x` times the program's columns."""
        first = place.expert * count * width
        starts = [first + i * width for i in range(count)]

        def step(i: Array, sums: list[Array]) -> list[Array]:
            depth = (i * self.depth + jnp.arange(self.depth))[None, :]
            rows = plt.load(x.at[row[:, None], depth], mask=_across(place.used, self.depth), other=0.0)  # [B, depth]
            parts = [plt.load(stack.values.at[(start + place.column)[:, None], depth]) for start in starts]
            products = [matmul(rows, part.astype(rows.dtype), 1, self.interpret) for part in parts]
            return [total + part for total, part in zip(sums, products, strict=True)]

        zeros = [jnp.zeros((self.rows, self.columns), jnp.float32) for _ in starts]
        sums = jax.lax.fori_loop(0, x.shape[1] // self.depth, step, zeros)
        if stack.scales is None:
            return sums
        factors = [plt.load(stack.scales.at[start + place.column]) for start in starts]  # [columns]
        return [total * self.across_rows(factor) for total, factor in zip(sums, factors, strict=True)]

    def across_rows(self, values: Array) -> Array:
        """`values` [columns] for every row of a product."""
        return values[None, :]

    def store(self, place: Place, out: Any, values: Array) -> None:
        """`values` as `products` has them → `out` [P, width]."""
        to = out.at[place.pair[:, None], place.column[None, :]]
        plt.store(to, values.astype(out.dtype), mask=_across(place.used, self.columns))


@dataclass(frozen=True)
class GroupedTiles:
    """The static sizes of a product: rows, columns of each of an expert's `matrices`, and how the stack is stored."""

    rows: int
    columns: int
    matrices: int
    stored: Stored

    @classmethod
    def choose(cls, rows: int, out: int, matrices: int, wide: bool, stored: Stored) -> "GroupedTiles":
        """Tiles for a product of width `out`; `wide`: with rows in f32. A program has 128 columns in all, or 64 where
        more programs or fewer registers are needed.
        """
        columns = divisor(out, (64 if wide or rows < MAX_GROUPED_ROWS else 128) // matrices)
        return cls(rows, columns, matrices, stored)

    @property
    def params(self) -> Any:
        return compiler_params(self.columns * self.matrices, self.rows)

    def products(self, place: Place, x: Any, row: Array, stack: Stack, count: int, width: int) -> list[Array]:
        """f32 [columns, B], otherwise as those of `WholeTiles`. The matrices are multiplied at once."""
        output = grouped_tile.interleaved(place.first, self.columns, count, width)
        group = place.expert * (x.shape[1] // self.stored.group)
        of_values = place.expert * count * width + output
        matrix = Matrix(stack.values, stack.scales, stack.zeros, of_values, output, group)
        rows = Rows(x, row, place.used)
        return grouped_tile.apart(
            grouped_tile.product(self.stored, matrix, rows, 0, x.shape[1] // self.stored.step), count
        )

    def across_rows(self, values: Array) -> Array:
        return values[:, None]

    def store(self, place: Place, out: Any, values: Array) -> None:
        to = out.at[place.pair[None, :], place.column[:, None]]
        plt.store(to, values.astype(out.dtype), mask=jnp.broadcast_to(place.used[None, :], values.shape))


def _across(used: Array, columns: int) -> Array:
    return jnp.broadcast_to(used[:, None], (len(used), columns))
