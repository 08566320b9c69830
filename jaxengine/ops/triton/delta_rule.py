"""The gated delta rule: a program carries some columns of a value head's states through one row's tokens.

Rows run in parallel, and so do a head's columns, since each column of the states is computed from its own value alone.
A program loops over its row's tokens, one in a decode step and a chunk in a prefill, with its states in registers; it
reads and writes them once per row, in place. The loads of `UNROLLED` tokens are issued together.

Lower bounds on an H200 (4.3 TB/s measured) per layer of Qwen3.5-27B (48 value heads of 128 x 128 states): decode moves
6 MiB per row (128 rows: 805 MB, 187 us). A chunk of a prompt takes its length times the latency of a token.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import DeltaInputs, StepBatch, layer_of, row_starts

COLUMNS = 8  # of a program: with 128 rows of states a lane of its warp has 32 numbers
WARPS = 1
UNROLLED = 4  # tokens, in a mixed step
EPS = 1e-6


def delta_rule(inputs: DeltaInputs, states: Array, batch: StepBatch, interpret: bool = False) -> tuple[Array, Array]:
    """states [L, slots, K, G, D, V], overwritten in place → y f32 [T, K, G, V], 0 for padding in a ragged step, and
    the states.

    Args:
        interpret: run the kernel as plain JAX, on any device.
    """
    heads, group, width = inputs.values.shape[1:]
    starts, slots = row_starts(batch), batch.tables[:, 0]
    y, states = pl.pallas_call(
        partial(_kernel, UNROLLED if batch.ragged else 1),
        out_shape=(
            jax.ShapeDtypeStruct(inputs.values.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(pl.cdiv(width, COLUMNS), heads * group, len(slots)),
        input_output_aliases={1: 1},
        compiler_params=plt.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="delta_rule",
    )(layer_of(batch), states, starts, slots, batch.position, inputs)
    if batch.ragged:
        y = jnp.where((jnp.arange(len(y)) < batch.tokens)[:, None, None, None], y, 0)
    return y, states


def _kernel(
    unrolled: int,
    layer: Any,
    states: Any,
    starts: Any,
    slots: Any,
    positions: Any,
    inputs: Any,
    y: Any,
    new_states: Any,
) -> None:
    group, size, width = states.shape[3:]
    row, head = pl.program_id(2), (pl.program_id(1) // group, pl.program_id(1) % group)
    first, end = starts[row], starts[row + 1]
    column = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS)
    line = jnp.arange(pl.next_power_of_2(size))
    columns, lines = (column, column < width), (line, line < size)
    both = lines[1][:, None] & columns[1][None, :]

    @pl.when(first < end)
    def _() -> None:
        at: Any = (layer[0], slots[row], *head, line[:, None], column[None, :])
        s = plt.load(states.at[at], mask=both & (positions[first] > 0), other=0.0)  # [D, COLUMNS]
        steps = (end - first + unrolled - 1) // unrolled
        step = partial(_tokens, unrolled, inputs, y, head, lines, columns, first, end)
        s = jax.lax.fori_loop(0, steps, step, s)
        plt.store(new_states.at[at], s, mask=both)


def _tokens(
    unrolled: int,
    inputs: Any,
    y: Any,
    head: tuple[Any, Any],
    lines: tuple[Array, Array],
    columns: tuple[Array, Array],
    first: Array,
    end: Array,
    i: Array,
    s: Array,
) -> Array:
    """s [D, COLUMNS] after `unrolled` more tokens, as far as the row has them."""
    (line, inside), (column, mine) = lines, columns
    size = inputs.keys.shape[2]
    loaded = []
    for token in (first + i * unrolled + j for j in range(unrolled)):
        real = token < end
        of_key = [
            plt.load(each.at[token, head[0], line], mask=inside & real, other=0.0).astype(jnp.float32)
            for each in (inputs.queries, inputs.keys)
        ]
        value = plt.load(inputs.values.at[token, *head, column], mask=mine & real, other=0.0).astype(jnp.float32)
        numbers = [plt.load(each.at[token, *head], mask=real, other=0.0) for each in (inputs.decay, inputs.rate)]
        loaded.append((token, real, *of_key, value, *numbers))
    for token, real, q, k, v, decay, rate in loaded:
        # beyond the row's end decay and rate are 0, so the states stay the same
        q, k = (each * jax.lax.rsqrt((each * each).sum() + EPS) for each in (q, k))
        s = s * jnp.exp(decay)
        change = rate * (v - (k[:, None] * s).sum(0))  # [COLUMNS]
        s = s + k[:, None] * change[None, :]
        plt.store(y.at[token, *head, column], (q[:, None] * s).sum(0) * size**-0.5, mask=mine & real)
    return s
