"""Adds a branch to the residual stream and normalises the sum, in one kernel. A program computes a token.

XLA makes two to three kernels of this, each reading what the one before wrote. At batch 1, where the arrays are a few
KiB, they cost little but their launches.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.architecture.model import Norm
from jaxengine.ops.norm import normalised, scaled

PER_THREAD = 32  # elements of a token
WARPS = (1, 16)


def add_norm(
    x: Array,
    branch: Array,
    weight: Array | None,
    bias: Array | None,
    order: Array | None,
    spec: Norm,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """As `jaxengine.ops.norm.add_norm`."""
    tokens, hidden = x.shape
    padded = pl.next_power_of_2(hidden)
    like_x = jax.ShapeDtypeStruct((tokens, hidden), x.dtype)
    total, *_, normed = pl.pallas_call(
        partial(_kernel, spec, hidden, padded, interpret),
        out_shape=(like_x, like_x) if order is None else (like_x, like_x, like_x),
        grid=(tokens,),
        compiler_params=plt.CompilerParams(num_warps=min(max(padded // (32 * PER_THREAD), WARPS[0]), WARPS[1])),
        interpret=interpret,
        name="add_norm",
    )(x, branch, weight, bias, order)
    return total, normed


def _kernel(
    spec: Norm,
    hidden: int,
    padded: int,
    interpret: bool,
    x_ref: Any,
    branch_ref: Any,
    weight_ref: Any,
    bias_ref: Any,
    order_ref: Any,
    total_ref: Any,
    normed_ref: Any,
    *sorted_ref: Any,
) -> None:
    """`sorted_ref` gets what `normed_ref` has in order: elements change threads by way of the cache."""
    token, column = pl.program_id(0), jnp.arange(padded)
    inside = None if hidden == padded else column < hidden

    def load(ref: Any, *index: Any, at: Array = column) -> Array:
        return plt.load(ref.at[*index, at], mask=inside, other=None if inside is None else 0)

    weight, bias = (None if ref is None else load(ref) for ref in (weight_ref, bias_ref))
    total = load(x_ref, token) + load(branch_ref, token)
    plt.store(total_ref.at[token, column], total, mask=inside)
    wide = normalised(total.astype(jnp.float32), spec.kind, spec.eps, (0,), inside, hidden)
    plt.store(normed_ref.at[token, column], scaled(wide, spec.kind, weight, bias, total.dtype), mask=inside)
    if sorted_ref:
        if not interpret:  # which runs in one thread
            plt.debug_barrier()
        plt.store(sorted_ref[0].at[token, column], load(normed_ref, token, at=load(order_ref)), mask=inside)
