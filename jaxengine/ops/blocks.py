"""Groups pairs of (token, expert) into blocks of rows that share one expert.

A pair whose expert is out of range lies in no block.

Legend: P pairs, E experts, B rows of a block, N blocks, T tokens, k experts per token.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

NONE = 2**31 - 1


class Blocks(NamedTuple):
    """The pair in each row of each block, `NONE` for an empty row, and each block's expert."""

    pairs: Array  # i32 [N, B]
    expert: Array  # i32 [N]


def sorted_blocks(expert: Array, count: int, rows: int) -> tuple[Blocks, Array]:
    """Blocks of `rows` rows, sorted by expert, for P pairs: pair p goes to `expert[p]` of `count` experts.

    Also returns, for each pair, the row among all N·B that holds it, i32 [P].
    """
    size = expert.shape[0]
    number = size // rows + count
    counts = (expert[:, None] == jnp.arange(count)).sum(0, dtype=jnp.int32)
    taken = (counts + rows - 1) // rows  # blocks of each expert
    end = jnp.cumsum(taken)
    order = jnp.argsort(expert)  # [P], pairs by expert
    of = expert[order]
    rank = jnp.arange(size) - (jnp.cumsum(counts) - counts)[of]  # of a pair among its expert's
    at = jnp.where(of < count, (end - taken)[of] * rows + rank, number * rows)
    pairs = jnp.full(number * rows, NONE).at[at].set(order, mode="drop").reshape(number, rows)
    block = (end[None, :] <= jnp.arange(number)[:, None]).sum(1, dtype=jnp.int32)  # [N]
    return Blocks(pairs, block.clip(max=count - 1)), jnp.zeros(size, jnp.int32).at[order].set(at)


def single_pairs(expert: Array) -> Blocks:
    """One block for each pair, [P, 1]."""
    return Blocks(jnp.arange(len(expert))[:, None], expert)


def shared_blocks(chosen: Array, count: int, rows: int) -> Blocks:
    """P blocks without sorting, for T tokens, at most `rows`. `chosen` [T, k] names an expert at most once per token.

    Block p holds all pairs of pair p's expert if p is the first of these pairs; otherwise it is empty.
    """
    tokens, used = chosen.shape
    expert, number = chosen.reshape(-1), jnp.arange(tokens * used)
    same = chosen[None] == expert[:, None, None]  # [P, T, k]
    pairs = jnp.where(same, number.reshape(chosen.shape), NONE).min(-1)  # [P, T]
    first = (pairs.min(-1) == number) & (expert < count)
    pairs = jnp.where(first[:, None], pairs, NONE)
    return Blocks(jnp.pad(pairs, ((0, 0), (0, rows - tokens)), constant_values=NONE), expert.clip(max=count - 1))
