"""One token times a matrix in few bits: a decode step of one request.

Tensor cores would multiply sixteen columns, fifteen of them padding, and every step of theirs waits for shared memory.
Here a program is one warp, whose threads keep what they read in registers and add up in f32. On an H200 the products of
a layer of an 8B Llama took 50 us so, and 76 with tensor cores.

Legend: M outputs of a program, S tiles of a step, P inputs of a plane, G groups.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.triton.grouped_tile import Stored, divisor, numbers
from jaxengine.ops.triton.unpacking import FP8, Raised, fma, raised, widened

TILES = 4  # read at once: with planes of 64, the words of an output are then 512 bytes
MANY_OUTPUTS = 8192  # of a matrix; from so many, twice as many of each program still leave work for all


def product(x: Array, values: Array, scales: Array, zeros: Array | None, stored: Stored) -> Array:
    """x [1, in] in 16 bits times a matrix of `grouped.product` that lies in planes → [1, out]."""
    inputs, outputs = x.shape[1], len(values)
    rows = divisor(outputs, 8 if stored.planes == 4 and outputs >= MANY_OUTPUTS else 4)
    tiles = divisor(inputs // stored.step, TILES)
    made: Array = pl.pallas_call(
        partial(_kernel, stored, rows, tiles),
        out_shape=jax.ShapeDtypeStruct((1, outputs), x.dtype),
        grid=(outputs // rows,),
        compiler_params=plt.CompilerParams(num_warps=1, num_stages=1),
        interpret=stored.interpret,
        name="grouped_vector",
    )(x, values, scales, zeros)
    return made


def _kernel(stored: Stored, rows: int, tiles: int, x: Any, values: Any, scales: Any, zeros: Any, out: Any) -> None:
    """`rows` outputs. A step's words are asked for while those of the step before are multiplied."""
    row = pl.program_id(0) * rows + jnp.arange(rows)  # [M]
    steps = x.shape[1] // (tiles * stored.step)

    def words(i: Array) -> Array:
        at = (i * tiles + jnp.arange(tiles))[:, None] * stored.plane + jnp.arange(stored.plane)[None, :]  # [S, P]
        return plt.load(values.at[row[:, None, None], at[None]])  # [M, S, P]

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ours, total = carry
        return words(jnp.minimum(i + 1, steps - 1)), _add_products(stored, tiles, row, x, scales, zeros, i, ours, total)

    start = jnp.zeros((rows, tiles, stored.plane), jnp.float32)
    _, total = jax.lax.fori_loop(0, steps, step, (words(jnp.int32(0)), start))
    sums = total.sum(2).sum(1)  # [M]
    if scales.shape[0] == 1:
        sums = sums * plt.load(scales.at[0, row]).astype(jnp.float32)
    plt.store(out.at[0, row], sums.astype(out.dtype))


def _add_products(
    stored: Stored, tiles: int, row: Array, x: Any, scales: Any, zeros: Any, i: Array, words: Array, total: Array
) -> Array:
    """`total`, f32 [M, S, P], with the products of step `i`: scaled, unless one scale is for all inputs."""
    first = (i * tiles + jnp.arange(tiles)) * stored.step  # [S], inputs
    per_group = max(1, min(stored.planes, stored.group // stored.plane))  # planes
    for begin in range(0, stored.planes, per_group):
        codes, parts = [], []
        for plane in range(begin, begin + per_group):
            at = first[:, None] + plane * stored.plane + jnp.arange(stored.plane)[None, :]  # [S, P]
            parts.append(widened(plt.load(x.at[0, at[None]]), stored.interpret))  # [1, S, P]
            codes.append(_codes(stored, words, plane, x.dtype))
        inputs = sum(parts[1:], parts[0])
        taken = sum((code.added * part for code, part in zip(codes, parts, strict=True)), stored.less * inputs)
        alone = scales.shape[0] == 1
        products = total - taken if alone else jnp.broadcast_to(-taken, total.shape)
        for code, part in zip(codes, parts, strict=True):
            products = fma(code.numbers, part, products, stored.interpret)
        group = ((first + begin * stored.plane) // stored.group)[None, :]  # [1, S]
        if zeros is not None:
            zero = plt.load(zeros.at[group, row[:, None]]).astype(jnp.float32)[:, :, None]  # [M, S, 1]
            products = fma(-zero, inputs, products, stored.interpret)
        if alone:
            total = products
        else:
            scale = plt.load(scales.at[group, row[:, None]]).astype(jnp.float32)[:, :, None]  # [M, S, 1]
            total = fma(scale, products, total, stored.interpret)
    return total


def _codes(stored: Stored, words: Array, plane: int, dtype: jnp.dtype) -> Raised:
    """[M, S, P]: a plane's codes."""
    if stored.table or stored.octets in FP8:
        return Raised(widened(numbers(stored, words, plane, 0, dtype), stored.interpret), 0.0)
    place = jnp.arange(stored.plane)[None, None, :]
    return raised(words, plane, place, bool(stored.octets), stored.interpret)
