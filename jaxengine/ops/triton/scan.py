"""The recurrence of a selective state space: a program carries the states of some channels through one row's tokens.

Rows run in parallel. A program loops over its row's tokens, one in a decode step and a chunk in a prefill, with the
states in registers; it reads and writes them once per row, in place. A chunk takes its length times the latency of a
load, so the loads of `UNROLLED` tokens are issued together.

Lower bounds on an H200 (4.3 TB/s measured) per layer of Falcon-Mamba 7B (8192 channels, 16 states): decode moves 1 MiB
per row (128 rows: 134 MB, 31 µs); a chunk of 2048 tokens moves 10 bytes per channel and token (168 MB, 39 µs).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import ScanInputs, StepBatch, layer_of, row_starts, settled_ends

CHANNELS = 32  # of a program: a single row has enough programs, and every input is read in whole 128-byte lines
WARPS = 1
UNROLLED = 8  # tokens, in a mixed step: 168 registers; 16 tokens would take 255


def scan(inputs: ScanInputs, states: Array, batch: StepBatch, interpret: bool = False) -> tuple[Array, Array]:
    """states [L, pages, C, N], overwritten in place → y [T, C], 0 for padding in a ragged step, and the states.

    Args:
        interpret: run the kernel as plain JAX, on any device.
    """
    channels, starts, page = inputs.x.shape[1], row_starts(batch), batch.tables[:, 0]
    y, states = pl.pallas_call(
        partial(_kernel, UNROLLED if batch.ragged else 1, batch.settled is not None),
        out_shape=(
            jax.ShapeDtypeStruct(inputs.x.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(pl.cdiv(channels, CHANNELS), len(page)),
        input_output_aliases={1: 1},
        compiler_params=plt.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="state_scan",
    )(layer_of(batch), states, starts, settled_ends(batch, starts), page, batch.position, inputs)
    if batch.ragged:
        y = jnp.where(jnp.arange(len(y))[:, None] < batch.tokens, y, 0)
    return y, states


def _kernel(
    unrolled: int,
    guesses: bool,
    layer: Any,
    states: Any,
    starts: Any,
    settled: Any,
    pages: Any,
    positions: Any,
    inputs: Any,
    y: Any,
    new_states: Any,
) -> None:
    row = pl.program_id(1)
    first, kept, end = starts[row], settled[row], starts[row + 1]
    size = states.shape[3]
    channel = pl.program_id(0) * CHANNELS + jnp.arange(CHANNELS)
    state = jnp.arange(pl.next_power_of_2(size))
    mine, real = channel < states.shape[2], state < size
    both = mine[:, None] & real[None, :]

    @pl.when(first < end)
    def _() -> None:
        at: Any = (layer[0], pages[row], channel[:, None], state[None, :])
        a = plt.load(inputs.a.at[channel[:, None], state[None, :]], mask=both, other=0.0)  # [CHANNELS, N]
        h = plt.load(states.at[at], mask=both & (positions[first] > 0), other=0.0)

        def behind(h: Array, first: Array, end: Array) -> Array:
            """The states `h` behind the tokens from `first` to `end`."""
            steps = (end - first + unrolled - 1) // unrolled
            step = partial(_tokens, unrolled, inputs, y, a, (channel, mine), (state, real), first, end)
            return jax.lax.fori_loop(0, steps, step, h)  # type: ignore[no-any-return]

        h = behind(h, first, kept)
        plt.store(new_states.at[at], h, mask=both)
        if guesses:
            behind(h, kept, end)


def _tokens(
    unrolled: int,
    inputs: Any,
    y: Any,
    a: Array,
    channels: tuple[Array, Array],
    states: tuple[Array, Array],
    first: Array,
    end: Array,
    i: Array,
    h: Array,
) -> Array:
    """h [CHANNELS, N] after `unrolled` more tokens, as far as the row has them."""
    (channel, mine), (state, real) = channels, states
    loaded = []
    for token in (first + i * unrolled + j for j in range(unrolled)):
        inside = token < end
        wide = [plt.load(x.at[token, channel], mask=mine & inside, other=0.0) for x in (inputs.x, inputs.dt)]
        narrow = [plt.load(x.at[token, state], mask=real & inside, other=0.0) for x in (inputs.b, inputs.c)]
        loaded.append((token, inside, *wide, *narrow))
    for token, inside, x, dt, b, c in loaded:
        # dt is 0 beyond the row's end, so the states stay the same
        h = jnp.exp(dt[:, None] * a) * h + (dt * x.astype(jnp.float32))[:, None] * b[None, :]
        plt.store(y.at[token, channel], (h * c[None, :]).sum(1), mask=mine & inside)
    return h
