"""The gated delta rule of rows of several tokens, in chunks: see `ops/delta_chunk.py`.

A program carries some columns of a value head's states through its row's chunks, in registers.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import DeltaInputs, StepBatch, layer_of, row_starts, settled_ends
from jaxengine.ops.delta_chunk import CHUNK, Chunk, Products, chunk_step

COLUMNS = 32  # of a program
WARPS = 8  # with 4, bf16 spills 8 bytes a thread and f32 1240 (JAX 0.10.2)
F32 = jax.lax.DotAlgorithmPreset.F32_F32_F32
TF32, TF32_X3 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def delta_rule(
    inputs: DeltaInputs, states: Array, batch: StepBatch, corrects: bool, interpret: bool
) -> tuple[Array, Array]:
    """As `triton.delta_rule` has it, for a ragged step."""
    heads, group, width = inputs.values.shape[1:]
    starts, slots = row_starts(batch), batch.tables[:, 0]
    y, states = pl.pallas_call(
        partial(_kernel, corrects, interpret, batch.settled is not None),
        out_shape=(
            jax.ShapeDtypeStruct(inputs.values.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(pl.cdiv(width, COLUMNS), heads * group, len(slots)),
        input_output_aliases={1: 1},
        compiler_params=plt.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="delta_chunks" if corrects else "mamba2_chunks",
    )(layer_of(batch), states, starts, settled_ends(batch, starts), slots, batch.position, inputs)
    real = jnp.arange(len(y)) < batch.tokens
    return jnp.where(real[:, None, None, None], y, 0), states


class _Part(NamedTuple):
    """What a program computes: a value head, and which lines and columns of its states."""

    head: tuple[Any, Any]
    line: Array  # [D], padded
    inside: Array  # [D]
    column: Array  # [COLUMNS]
    mine: Array  # [COLUMNS]


def _kernel(
    corrects: bool,
    interpret: bool,
    guesses: bool,
    layer: Any,
    states: Any,
    starts: Any,
    settled: Any,
    slots: Any,
    positions: Any,
    inputs: Any,
    y: Any,
    new_states: Any,
) -> None:
    group, size, width = states.shape[3:]
    row, number = pl.program_id(2), pl.program_id(1)
    first, kept, end = starts[row], settled[row], starts[row + 1]
    line = jnp.arange(max(CHUNK, pl.next_power_of_2(size)))
    column = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS)
    part = _Part((number // group, number % group), line, line < size, column, column < width)

    @pl.when(first < end)
    def _() -> None:
        both = part.inside[:, None] & part.mine[None, :]
        at: Any = (layer[0], slots[row], *part.head, line[:, None], column[None, :])
        s = plt.load(states.at[at], mask=both & (positions[first] > 0), other=0.0)  # [D, COLUMNS]

        def behind(s: Array, first: Array, end: Array) -> Array:
            """The states `s` behind the tokens from `first` to `end`."""
            chunks = (end - first + CHUNK - 1) // CHUNK
            chunk = partial(_chunk, corrects, interpret, inputs, y, part, first, end)
            return jax.lax.fori_loop(0, chunks, chunk, s)  # type: ignore[no-any-return]

        s = behind(s, first, kept)
        plt.store(new_states.at[at], s, mask=both)
        if guesses:
            behind(s, kept, end)


def _chunk(
    corrects: bool, interpret: bool, inputs: Any, y: Any, part: _Part, first: Array, end: Array, i: Array, s: Array
) -> Array:
    """s [D, COLUMNS] after one chunk more. Behind the row's end tokens are zeros, and change nothing."""
    token = first + i * CHUNK + jnp.arange(CHUNK)
    real = token < end
    of_keys: Any = (token[:, None], part.head[0], part.line[None, :])
    of_values: Any = (token[:, None], *part.head, part.column[None, :])
    keys = real[:, None] & part.inside[None, :]
    values = real[:, None] & part.mine[None, :]
    chunk = Chunk(
        plt.load(inputs.queries.at[of_keys], mask=keys, other=0.0).astype(jnp.float32),
        plt.load(inputs.keys.at[of_keys], mask=keys, other=0.0).astype(jnp.float32),
        plt.load(inputs.values.at[of_values], mask=values, other=0.0).astype(jnp.float32),
        plt.load(inputs.decay.at[token, *part.head], mask=real, other=0.0),
        plt.load(inputs.rate.at[token, *part.head], mask=real, other=0.0),
    )
    precision = TF32_X3 if inputs.keys.dtype == jnp.float32 else TF32
    products = Products(partial(_product, precision, interpret), partial(_product, F32, interpret))
    made, s = chunk_step(chunk, s, products, inputs.keys.shape[2], corrects)
    plt.store(y.at[of_values], made, mask=values)
    return s


def _product(precision: Any, interpret: bool, x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """x and y, f32, contracted over their axes `of_x` and `of_y`."""
    contracted = (((of_x,), (of_y,)), ((), ()))
    return jax.lax.dot_general(
        x, y, contracted, precision=None if interpret else precision, preferred_element_type=jnp.float32
    )
