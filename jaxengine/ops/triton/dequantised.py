"""The product of many tokens with a matrix in few bits: the matrix becomes numbers of 16 bits, and then XLA multiplies.

With so many tokens arithmetic takes the time, and XLA's product of 16 bits makes 540 to 770 TFLOP/s on an H200, where
the kernel of `grouped` makes 340 to 410. A prompt of 2,048 tokens took an 8B Llama in int4 55.3 ms so and 91.8 by that
kernel, 50.9 in bf16. What was written out lasts until it is multiplied, and the next matrix takes its place; of a large
one it is a chunk of outputs at a time. Plans count that much (`capacity/temporaries`).

Legend: G groups, M outputs of a tile, P inputs of a plane.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.triton.grouped_tile import Stored, divisor, numbers

# Bytes of 16-bit numbers at a time. With 32 MiB, which would stay in the cache of 50 MB, smaller products waste more
# than that saves: gate and up of an 8B Llama times 2,048 tokens took 1.01 ms, 0.70 at once, 0.62 in bf16 (H200, by
# hand at f31b6c3f).
CHUNK = 256 << 20
WHOLE = 1024  # outputs of a chunk are a multiple, where so many fit: a product's tiles then divide evenly
TILE = 64  # outputs of a program, whose words of 4 planes are 8 KB


def product(x: Array, values: Array, scales: Array, zeros: Array | None, stored: Stored) -> Array:
    """x [T, in] in 16 bits times a matrix of `grouped.product` → [T, out]."""
    made: list[Array] = []
    for start, outputs in chunks(len(values), x.shape[1] * x.dtype.itemsize):
        after = made[-1] if made else x
        matrix = chunk(values, scales, zeros, after, start=start, outputs=outputs, stored=stored)
        made.append(jax.lax.dot_general(x, matrix, (((1,), (1,)), ((), ())), preferred_element_type=x.dtype))
    return made[0] if len(made) == 1 else jnp.concatenate(made, 1)


def chunks(outputs: int, row: int) -> Iterator[tuple[int, int]]:
    """The first output of each chunk, and how many it has; `row` is the bytes of an output in 16 bits."""
    most = max(1, CHUNK // row)
    unit = next((unit for unit in (WHOLE, 128, TILE, 16) if unit <= most), 1)
    size = most // unit * unit
    for start in range(0, outputs, size):
        yield start, min(size, outputs - start)


def chunk(
    values: Array, scales: Array, zeros: Array | None, after: Array, *, start: int, outputs: int, stored: Stored
) -> Array:
    """[outputs, in] of the type of `after`: the numbers of `outputs` of a matrix from output `start`, computed in f32
    and rounded once. They are made once `after` is there: else XLA may make several chunks before it needs the first.
    """
    steps = scales.shape[0] * stored.group // stored.step
    rows = divisor(outputs, TILE)
    table = jnp.asarray(stored.table, jnp.float32) if stored.table else None
    made: Array = pl.pallas_call(
        partial(_kernel, stored, start, rows),
        out_shape=jax.ShapeDtypeStruct((outputs, steps * stored.step), after.dtype),
        grid=(steps, outputs // rows),
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        interpret=stored.interpret,
        name="dequantised_chunk",
    )(values, scales, zeros, table, after)
    return made


def _kernel(
    stored: Stored, start: int, rows: int, values: Any, scales: Any, zeros: Any, table: Any, after: Any, out: Any
) -> None:
    """The inputs of a step of some outputs."""
    del after
    step, to = pl.program_id(0), pl.program_id(1) * rows + jnp.arange(rows)
    row, column = start + to, jnp.arange(stored.plane)
    words = plt.load(values.at[row[:, None], (step * stored.plane + column)[None, :]])  # [M, P]
    for first in range(0, stored.planes, stored.planes_of_group):
        group = (step * stored.step + first * stored.plane) // stored.group
        scale = plt.load(scales.at[group, row]).astype(jnp.float32)[:, None]
        zero = None if zeros is None else plt.load(zeros.at[group, row])[:, None]
        for plane in range(first, first + stored.planes_of_group):
            made = _less_zero(stored, words, plane, zero, table, out.dtype)  # f32 [M, P]
            at = step * stored.step + plane * stored.plane + column
            plt.store(out.at[to[:, None], at[None, :]], (made * scale).astype(out.dtype))


def _less_zero(stored: Stored, words: Array, plane: int, zero: Any, table: Any, dtype: jnp.dtype) -> Array:
    """f32 [M, P], exact but for what a zero point that is not whole takes away."""
    if table is not None:  # from the first cache; entries are not exact in `dtype`
        codes: Array = plt.load(table.at[words.astype(jnp.int32) >> (4 * plane) & 15])
        return codes
    whole = zero is not None and jnp.issubdtype(zero.dtype, jnp.integer)
    made = numbers(stored, words, plane, zero if whole else stored.offset, dtype).astype(jnp.float32)
    return made if zero is None or whole else made - zero.astype(jnp.float32)
