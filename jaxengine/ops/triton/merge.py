"""The partial results of a row's splits, and how the last program to finish merges them.

Legend: as in `tile`; P splits of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.triton.tile import LOWEST, Problem, Running

# Heads that are merged at once, and numbers of their partial results: a program waits for memory as often as it loops.
MOST_HEADS, MERGED = 4, 16384


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
    heads = max(1, min(MERGED // (splits * problem.padded_dim), MOST_HEADS, pl.next_power_of_2(problem.group)))
    split, column = jnp.arange(splits), problem.columns()
    there = (split < used)[None, :]  # [1, P]

    def some_heads(i: Array, _: None) -> None:
        head = i * heads + jnp.arange(heads)
        mine = (head < problem.group)[:, None]
        at = (place * splits + split[None, :]) * problem.group + head[:, None]  # [H, P]
        some, in_dim = mine & there, problem.in_dim()
        maximum = plt.load(partials.maximum.at[at], mask=some, other=LOWEST)
        total = plt.load(partials.total.at[at], mask=some, other=0.0)
        index = at[:, :, None], column[None, None, :]
        output = plt.load(partials.output.at[index], mask=some[:, :, None] & in_dim[None], other=0.0)  # [H, P, D]
        weights = jnp.exp2(maximum - maximum.max(1)[:, None])
        total = (weights * total).sum(1)
        merged = (weights[:, :, None] * output).sum(1) / jnp.where(total == 0, 1, total)[:, None]
        to_rows = out_ref.at[to + head[:, None], column[None, :]]
        plt.store(to_rows, merged.astype(out_ref.dtype), mask=mine & in_dim)

    jax.lax.fori_loop(0, -(-problem.group // heads), some_heads, None)
