"""The gated delta rule of a decode step, or Mamba 2: a program takes some columns of a head's states one token on.

Each column of the states is computed from its own value alone. A program reads and writes its states once, in place.
Rows of several tokens are computed in chunks, see `delta_chunks`.

Lower bound on an H200 (4.3 TB/s measured) per layer of Qwen3.5-27B (48 value heads of 128 x 128 states): a row moves
6 MiB, 128 rows 805 MB in 187 us; of Granite 4 Small (128 heads of 128 x 64 states) 8 MiB and 250 us.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import DeltaInputs, StepBatch, layer_of
from jaxengine.ops.delta_chunk import EPS
from jaxengine.ops.triton import delta_chunks

COLUMNS = 8  # of a program: with 128 rows of states a lane of its warp has 32 numbers
WARPS = 1


def delta_rule(
    inputs: DeltaInputs, states: Array, batch: StepBatch, corrects: bool = True, interpret: bool = False
) -> tuple[Array, Array]:
    """states [L, slots, K, G, D, V], overwritten in place → y f32 [T, K, G, V], 0 for padding in a ragged step, and
    the states.

    Args:
        corrects: it is the delta rule; else Mamba 2.
        interpret: run the kernel as plain JAX, on any device.
    """
    if batch.ragged:
        return delta_chunks.delta_rule(inputs, states, batch, corrects, interpret)
    heads, group, width = inputs.values.shape[1:]
    y, states = pl.pallas_call(
        partial(_kernel, corrects),
        out_shape=(
            jax.ShapeDtypeStruct(inputs.values.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(pl.cdiv(width, COLUMNS), heads * group, len(batch.page)),
        input_output_aliases={1: 1},
        compiler_params=plt.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="delta_rule" if corrects else "mamba2",
    )(layer_of(batch), states, batch.page, batch.position, inputs)
    return y, states


def _kernel(
    corrects: bool,
    layer: Any,
    states: Any,
    slots: Any,
    positions: Any,
    inputs: Any,
    y: Any,
    new_states: Any,
) -> None:
    group, size, width = states.shape[3:]
    token, head = pl.program_id(2), (pl.program_id(1) // group, pl.program_id(1) % group)
    column = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS)
    line = jnp.arange(pl.next_power_of_2(size))
    inside, mine = line < size, column < width
    both = inside[:, None] & mine[None, :]
    at: Any = (layer[0], slots[token], *head, line[:, None], column[None, :])
    s = plt.load(states.at[at], mask=both & (positions[token] > 0), other=0.0)  # [D, COLUMNS]
    q, k = (
        plt.load(each.at[token, head[0], line], mask=inside, other=0.0).astype(jnp.float32)
        for each in (inputs.queries, inputs.keys)
    )
    v = plt.load(inputs.values.at[token, *head, column], mask=mine, other=0.0).astype(jnp.float32)
    s = s * jnp.exp(inputs.decay[token, *head])
    if corrects:
        q, k = (each * jax.lax.rsqrt((each * each).sum() + EPS) for each in (q, k))
        q, v = q * size**-0.5, v - (k[:, None] * s).sum(0)
    s = s + k[:, None] * (inputs.rate[token, *head] * v)[None, :]
    plt.store(y.at[token, *head, column], (q[:, None] * s).sum(0), mask=mine)
    plt.store(new_states.at[at], s, mask=both)
