"""A step's own queries, keys and values: rotates them as they are loaded, and writes keys and values to their pages.

A decode step does both inside its attention kernel. In a mixed step a tile reads keys that other programs write, so a
kernel of its own comes first. Arrays are flat, as everywhere in this package.

Legend: as in `tile`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxengine.ops.batch import RopeTables, StepBatch
from jaxengine.ops.cache import stored
from jaxengine.ops.triton.tile import Inputs, Problem

MIN_WARPS, PER_WARP = 2, 4096  # elements of a token's queries per warp; twice as many spill


class Projected(NamedTuple):
    """The projections of a step's tokens, and where their keys and values are written."""

    qkv: Any  # [T·K·(G+2), D]
    rope_tables: Any  # `RopeTables`, or None
    page: Any  # i32 [T]
    offset: Any  # i32 [T]

    def queries(self, problem: Problem, token: Array, head: Array, rows: int) -> Array:
        """[rows, D], rotated: the queries of one token and key/value head; 0 beyond the group."""
        m = jnp.arange(rows)[:, None]
        mask = (m < problem.group) & problem.in_dim()
        return self._rotated(problem, token, self._first(problem, token, head) + m, problem.columns()[None, :], mask)

    def key(self, problem: Problem, token: Array, head: Array) -> Array:
        """[D], rotated."""
        at = self._first(problem, token, head) + problem.group
        return self._rotated(problem, token, at, problem.columns(), problem.columns() < problem.dim)

    def value(self, problem: Problem, token: Array, head: Array) -> Array:
        """[D]."""
        at = self._first(problem, token, head) + problem.group + 1
        return plt.load(self.qkv.at[at, problem.columns()], mask=problem.columns() < problem.dim, other=0.0)

    def entry(self, problem: Problem, token: Array, head: Array) -> Array:
        """i32 scalar: where in the layer's rows of the flat caches the key and value of `token` are written."""
        return (self.page[token] * problem.page_size + self.offset[token]) * problem.kv_heads + head

    def _first(self, problem: Problem, token: Array, head: Array) -> Array:
        return (token * problem.kv_heads + head) * (problem.group + 2)

    def _rotated(self, problem: Problem, token: Array, at: Array, column: Array, mask: Array) -> Array:
        """The rows `at` of qkv, rotated. Each element's partner is loaded too: Triton cannot cut an array in halves."""
        x = plt.load(self.qkv.at[at, column], mask=mask, other=0.0)
        if self.rope_tables is None:
            return x
        cos_ref, sin_ref = self.rope_tables
        half = cos_ref.shape[1]
        low, turned = column < half, column < 2 * half
        partner = jnp.where(low, column + half, column - half)
        y = plt.load(self.qkv.at[at, partner], mask=mask & turned, other=0.0)
        pair = jnp.where(low, column, partner)
        cos = plt.load(cos_ref.at[token, pair], mask=turned, other=1.0)
        sin = plt.load(sin_ref.at[token, pair], mask=turned, other=0.0)
        wide, across = x.astype(jnp.float32), y.astype(jnp.float32)
        return (wide * cos + across * jnp.where(low, -sin, sin)).astype(x.dtype)


def write(problem: Problem, entry: Array, x: Array, cache_ref: Any) -> None:
    """Write `x` [D] to a row of a flat cache."""
    plt.store(cache_ref.at[entry, problem.columns()], x, mask=problem.columns() < problem.dim)


def project(qkv: Array, rope_tables: RopeTables | None, batch: StepBatch) -> Projected:
    return Projected(qkv.reshape(-1, qkv.shape[-1]), rope_tables, batch.page, batch.offset)


def write_all(problem: Problem, projected: Projected, inputs: Inputs, tokens: Array) -> tuple[Array, Array, Array]:
    """Rotate and write all of the `tokens` real tokens. Returns q [T·K·G, D] and the caches, which are flat.

    Queries of padding are left unwritten.
    """
    count, keys, values = projected.page.shape[0], inputs.keys, inputs.values
    q = jax.ShapeDtypeStruct((count * problem.kv_heads * problem.group, problem.dim), projected.qkv.dtype)
    leaves, rows = len(jax.tree.leaves(projected)), pl.next_power_of_2(problem.group)
    q, keys, values = pl.pallas_call(
        partial(_kernel, problem),
        out_shape=(q, jax.ShapeDtypeStruct(keys.shape, keys.dtype), jax.ShapeDtypeStruct(values.shape, values.dtype)),
        grid=(problem.kv_heads, count),
        input_output_aliases={leaves + 2: 1, leaves + 3: 2},
        compiler_params=plt.CompilerParams(num_warps=max(MIN_WARPS, rows * problem.padded_dim // PER_WARP)),
        interpret=problem.interpret,
        name="rotate_and_write",
    )(projected, tokens.reshape(1), inputs.layer, keys, values)
    return q, keys, values


def _kernel(
    problem: Problem,
    projected: Projected,
    tokens: Any,
    layer: Any,
    old_keys: Any,
    old_values: Any,
    q_ref: Any,
    keys_ref: Any,
    values_ref: Any,
) -> None:
    head, token = pl.program_id(0), pl.program_id(1)
    rows = pl.next_power_of_2(problem.group)

    @pl.when(token < tokens[0])
    def _() -> None:
        at = problem.q_rows(token, head, rows)[:, None]
        mask = (jnp.arange(rows) < problem.group)[:, None] & problem.in_dim()
        plt.store(q_ref.at[at, problem.columns()[None, :]], projected.queries(problem, token, head, rows), mask=mask)
        key, value = projected.key(problem, token, head), projected.value(problem, token, head)
        entry = problem.first_row(layer) + projected.entry(problem, token, head)
        write(problem, entry, stored(key, keys_ref.dtype), keys_ref)
        write(problem, entry, stored(value, values_ref.dtype), values_ref)
