"""The partial results of a row's splits, and how the last program to finish merges them.

Legend: as in `tile`; P splits of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import triton as plt

from jaxengine.ops.triton.tile import LOWEST, Problem, Running


class Partials(NamedTuple):
    """The running softmax of each split, f32: outputs of the kernel that only the kernel reads."""

    maximum: Any  # [R·K·P·G]
    total: Any  # [R·K·P·G]
    output: Any  # [R·K·P·G, D]


def store(problem: Problem, out_ref: Any, to: Array, output: Array) -> None:
    """Write the first G rows of `output` [M, D] to the row's query heads, which begin at `to`."""
    m = jnp.arange(output.shape[0])[:, None]
    mask = (m < problem.group) & problem.in_dim()
    plt.store(out_ref.at[to + m, problem.columns()[None, :]], output.astype(out_ref.dtype), mask=mask)


def keep(problem: Problem, partials: Partials, part: Array, running: Running) -> None:
    """Store the running softmax of split number `part`, counted over all rows and key/value heads."""
    maximum, total, output = running
    m = jnp.arange(output.shape[0])
    at, mine = part * problem.group + m, m < problem.group
    plt.store(partials.maximum.at[at], maximum, mask=mine)
    plt.store(partials.total.at[at], total, mask=mine)
    index = at[:, None], problem.columns()[None, :]
    plt.store(partials.output.at[index], output, mask=mine[:, None] & problem.in_dim())


def merge(
    problem: Problem, splits: int, used: Array, partials: Partials, place: Array, out_ref: Any, to: Array
) -> None:
    """For each query head, the splits' outputs weighted by exp2 of their maximum less the highest one."""
    split, column = jnp.arange(splits), problem.columns()
    mask = (split < used)[:, None] & problem.in_dim()

    def one_head(g: Array, _: None) -> None:
        at = (place * splits + split) * problem.group + g  # [P]
        maximum = plt.load(partials.maximum.at[at], mask=split < used, other=LOWEST)
        total = plt.load(partials.total.at[at], mask=split < used, other=0.0)
        output = plt.load(partials.output.at[at[:, None], column[None, :]], mask=mask, other=0.0)  # [P, D]
        weights = jnp.exp2(maximum - maximum.max(0))
        total = (weights * total).sum(0)
        merged = (weights[:, None] * output).sum(0) / jnp.where(total == 0, 1, total)
        plt.store(out_ref.at[to + g, column], merged.astype(out_ref.dtype), mask=column < problem.dim)

    jax.lax.fori_loop(0, problem.group, one_head, None)
