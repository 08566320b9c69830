"""The gated delta rule of rows of several tokens, in chunks of C (Yang et al. 2024, arXiv 2412.06464, section 3.3).

With G_i the sum of the logarithms of decay up to token i of a chunk, and S the states in front of it,

    A_ij = β_i exp(G_i - G_j) (k_i · k_j)  for j < i             U = (I + A)⁻¹ β (V - exp(G) K S)
    y_i  = exp(G_i) q_i S + Σ_{j ≤ i} exp(G_i - G_j) (q_i · k_j) u_j
    S'   = exp(G_C) S + Σ_j exp(G_C - G_j) k_j ⊗ u_j

and for Mamba 2 (Dao & Gu 2024, arXiv 2405.21060, section 6), whose tokens do not correct each other, U = β V. So a
chunk is a handful of products on tensor cores, where token by token it would be C times two sums over the states, each
waiting for the one before. A program carries some columns of a value head's states through its row's chunks, in
registers.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import DeltaInputs, StepBatch, layer_of, row_starts

CHUNK = 16  # tokens: the least that a product takes
BLOCK = 8  # tokens whose matrix is inverted by squares; see `_inverse`
COLUMNS = 32  # of a program
WARPS = 8  # with 4, bf16 spills 8 bytes a thread and f32 1240 (JAX 0.10.2)
EPS = 1e-6  # as in `ops/delta_rule.py`
F32 = jax.lax.DotAlgorithmPreset.F32_F32_F32
TF32, TF32_X3 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def delta_rule(
    inputs: DeltaInputs, states: Array, batch: StepBatch, corrects: bool, interpret: bool
) -> tuple[Array, Array]:
    """As `triton.delta_rule` has it, for a ragged step."""
    heads, group, width = inputs.values.shape[1:]
    starts, slots = row_starts(batch), batch.tables[:, 0]
    y, states = pl.pallas_call(
        partial(_kernel, corrects, interpret),
        out_shape=(
            jax.ShapeDtypeStruct(inputs.values.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(pl.cdiv(width, COLUMNS), heads * group, len(slots)),
        input_output_aliases={1: 1},
        compiler_params=plt.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="delta_chunks" if corrects else "mamba2_chunks",
    )(layer_of(batch), states, starts, slots, batch.position, inputs)
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
    row, number = pl.program_id(2), pl.program_id(1)
    first, end = starts[row], starts[row + 1]
    line = jnp.arange(max(CHUNK, pl.next_power_of_2(size)))
    column = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS)
    part = _Part((number // group, number % group), line, line < size, column, column < width)

    @pl.when(first < end)
    def _() -> None:
        both = part.inside[:, None] & part.mine[None, :]
        at: Any = (layer[0], slots[row], *part.head, line[:, None], column[None, :])
        s = plt.load(states.at[at], mask=both & (positions[first] > 0), other=0.0)  # [D, COLUMNS]
        chunks = (end - first + CHUNK - 1) // CHUNK
        s = jax.lax.fori_loop(0, chunks, partial(_chunk, corrects, interpret, inputs, y, part, first, end), s)
        plt.store(new_states.at[at], s, mask=both)


def _chunk(
    corrects: bool,
    interpret: bool,
    inputs: Any,
    y: Any,
    part: _Part,
    first: Array,
    end: Array,
    i: Array,
    s: Array,
) -> Array:
    """s [D, COLUMNS] after one chunk more. Behind the row's end tokens are zeros, and change nothing."""
    size, precision = inputs.keys.shape[2], TF32_X3 if inputs.keys.dtype == jnp.float32 else TF32
    wide, exact = partial(_product, precision, interpret), partial(_product, F32, interpret)
    token = first + i * CHUNK + jnp.arange(CHUNK)
    real = token < end
    of_keys: Any = (token[:, None], part.head[0], part.line[None, :])
    of_values: Any = (token[:, None], *part.head, part.column[None, :])
    q, k = (
        plt.load(each.at[of_keys], mask=real[:, None] & part.inside[None, :], other=0.0).astype(jnp.float32)
        for each in (inputs.queries, inputs.keys)
    )
    v = plt.load(inputs.values.at[of_values], mask=real[:, None] & part.mine[None, :], other=0.0).astype(jnp.float32)
    decay, rate = (plt.load(each.at[token, *part.head], mask=real, other=0.0) for each in (inputs.decay, inputs.rate))
    if corrects:
        q = q * (jax.lax.rsqrt((q * q).sum(1) + EPS) * size**-0.5)[:, None]
        k = k * jax.lax.rsqrt((k * k).sum(1) + EPS)[:, None]

    later, earlier = jnp.arange(CHUNK)[:, None], jnp.arange(CHUNK)[None, :]
    total = jnp.where(earlier <= later, decay[None, :], 0).sum(1)  # [C], G
    total_across = jnp.where(later <= earlier, decay[:, None], 0).sum(0)  # the same, along the other axis
    kept = jnp.exp(jnp.where(earlier <= later, total[:, None] - total_across[None, :], 0))
    u = rate[:, None] * v  # [C, COLUMNS]
    if corrects:
        a = jnp.where(earlier < later, rate[:, None] * kept * wide(k, k, 1, 1), 0)
        known = jnp.exp(total)[:, None] * wide(k, s, 1, 0)
        u = exact(_inverse(a, exact), u - rate[:, None] * known, 1, 0)
    scores = jnp.where(earlier <= later, kept * wide(q, k, 1, 1), 0)
    made = jnp.exp(total)[:, None] * wide(q, s, 1, 0) + exact(scores, u, 1, 0)
    plt.store(y.at[of_values], made, mask=real[:, None] & part.mine[None, :])
    last = decay.sum()
    return s * jnp.exp(last) + wide(k * jnp.exp(last - total)[:, None], u, 0, 0)


def _inverse(a: Array, product: Any) -> Array:
    """(I + a)⁻¹ [C, C] of `a`, which is 0 on and above the diagonal.

    Of each block on the diagonal (I - d)(I + d²)(I + d⁴), since d⁸ = 0; with these, t, and what lies below the blocks,
    b, it is t - t b t. Blocks are small because powers of d grow: where all keys are alike d⁴ has a 20, and of the
    whole chunk a⁸ would have 3432, which the others cancel.
    """
    later, earlier = jnp.arange(CHUNK)[:, None], jnp.arange(CHUNK)[None, :]
    within = later // BLOCK == earlier // BLOCK
    one = jnp.where(later == earlier, 1.0, 0.0)
    d, b = jnp.where(within, a, 0), jnp.where(within, 0, a)
    square = product(d, d, 1, 0)
    t = product(product(one - d, one + square, 1, 0), one + product(square, square, 1, 0), 1, 0)
    return t - product(product(t, b, 1, 0), t, 1, 0)


def _product(precision: Any, interpret: bool, x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """x and y, f32, contracted over their axes `of_x` and `of_y`."""
    contracted = (((of_x,), (of_y,)), ((), ()))
    return jax.lax.dot_general(
        x, y, contracted, precision=None if interpret else precision, preferred_element_type=jnp.float32
    )
