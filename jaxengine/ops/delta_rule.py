"""The gated delta rule over a step's ragged rows, each continuing from the states in its sequence's slot; and Mamba 2,
which is the same without the correction of what the states already say.

    S_t = exp(g_t) S_{t-1}        S_t = S_t + k_t ⊗ β_t (v_t - k_t S_t)        y_t = q_t S_t / √D

(Yang et al. 2024, arXiv 2412.06464, equation 10), of queries and keys of length one. For Mamba 2 (Dao & Gu 2024, arXiv
2405.21060, section 2), with C, B, x and Δ for q, k, v and β, which are taken as they are, it is

    S_t = exp(g_t) S_{t-1}        S_t = S_t + B_t ⊗ Δ_t x_t                    y_t = C_t S_t

A row whose first token has position 0 starts from zero, whatever its slot holds, because a slot is not cleared when
another sequence takes it. A back end is a function of one device's heads; `delta_rule` and `mamba2` run it on a mesh.
`reference` is plain JAX, the CPU's path and the oracle of the GPU kernels in `triton/delta_rule`. Where rows have
several tokens it computes in chunks, so that nothing larger than one sequence's states exists beside the slots.

Legend: L layers in the caches, T tokens, K key heads, G value heads of each, D and V their dimensions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops import places
from jaxengine.ops.batch import DeltaInputs, StepBatch, row_starts, unfolded
from jaxengine.ops.delta_chunk import CHUNK, EPS, Chunk, Products, chunk_step
from jaxengine.ops.triton import delta_rule as triton
from jaxengine.sharding import TP, by_device

OF_VALUE_HEAD: Any = Chunk(None, None, 0, 0, 0)  # type: ignore[arg-type]
DeltaRule = Callable[[DeltaInputs, Array, StepBatch], tuple[Array, Array]]


def reference(inputs: DeltaInputs, states: Array, batch: StepBatch, corrects: bool = True) -> tuple[Array, Array]:
    """states [L, slots, K, G, D, V] → y f32 [T, K, G, V], 0 for padding in a ragged step, and states after each row's
    last token.

    Args:
        corrects: it is the delta rule; else Mamba 2.
    """
    return (_ragged if batch.ragged else _one_token_each)(corrects, inputs, states, unfolded(batch))


def _one_token_each(corrects: bool, inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    known = (batch.position > 0)[:, None, None, None, None]
    old = places.read(states, batch.layer, batch.page)  # [R, K, G, D, V]
    inputs = jax.tree.map(lambda each: each.astype(jnp.float32), inputs)
    y, new = _step(corrects, _normalised(inputs) if corrects else inputs, jnp.where(known, old, 0))
    return y, places.write(states, batch.layer, batch.page, new)


def _ragged(corrects: bool, inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    """In chunks of each row: a prompt of 512 tokens of 9 layers took 55 s token by token, which copied all slots for
    each (16 heads of 128 x 128 states, 2 cores of an EPYC, JAX 0.10.2).
    """
    heads, group, width = inputs.values.shape[1:]
    of_heads = jax.vmap(
        jax.vmap(partial(_chunk_of_head, corrects), in_axes=(OF_VALUE_HEAD, 0))
    )  # key heads, then of each

    def chunk(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, states, old = carry
        first, count = chunks.first[i], chunks.tokens[i]
        token = first + jnp.arange(CHUNK)
        real = jnp.arange(CHUNK) < count

        def taken(each: Array) -> Array:  # [C, K, …] → [K, …, C, …]
            rows = each.at[token].get(mode="clip")
            return jnp.where(real.reshape(CHUNK, *(1 for _ in rows.shape[1:])), rows, 0).astype(jnp.float32)

        queries, keys = (taken(each).transpose(1, 0, 2) for each in inputs[:2])
        values = taken(inputs.values).transpose(1, 2, 0, 3)
        decay, rate = (taken(each).transpose(1, 2, 0) for each in inputs[3:])
        place = (batch.layer, batch.page[first], 0, 0, 0, 0)
        stored = jax.lax.dynamic_slice(states, place, (1, 1, *states.shape[2:]))[0, 0]  # [K, G, D, V]
        old = jnp.where(chunks.begins[i], jnp.where(batch.position[first] > 0, stored, 0), old)
        made, new = of_heads(Chunk(queries, keys, values, decay, rate), old)  # [K, G, C, V]
        y = y.at[jnp.where(real, token, len(y))].set(made.transpose(2, 0, 1, 3), mode="drop")
        kept = jnp.where(chunks.kept[i], new, stored)
        return y, jax.lax.dynamic_update_slice(states, kept[None, None], place), new

    chunks = _chunks(batch)
    y = jnp.zeros((len(batch.position), heads, group, width), jnp.float32)
    of_row = jnp.zeros(states.shape[2:], states.dtype)
    return jax.lax.fori_loop(0, chunks.real, chunk, (y, states, of_row))[:2]


class _Chunks(NamedTuple):
    """Runs of at most CHUNK tokens, none of two rows nor of guesses and others, in order."""

    first: Array  # i32 [chunks], the first token
    tokens: Array  # i32 [chunks], how many
    begins: Array  # bool [chunks], whether it is its row's first
    kept: Array  # bool [chunks], whether its tokens are no guesses
    real: Array  # i32 [], how many chunks there are


def _chunks(batch: StepBatch) -> _Chunks:
    starts = of_rows = row_starts(batch)  # [R + 1]
    parts = 1 if batch.settled is None else 2
    if batch.settled is not None:  # a row's tokens, then its guesses
        starts = jnp.append(jnp.stack([starts[:-1], batch.settled], 1).reshape(-1), starts[-1])
    of_part = -(-(starts[1:] - starts[:-1]) // CHUNK)
    behind = jnp.cumsum(of_part)  # chunks up to each part's last
    number = jnp.arange(len(batch.position) // CHUNK + len(of_part))
    part = jnp.minimum((behind[None, :] <= number[:, None]).sum(1), len(of_part) - 1)
    first = starts[part] + (number - (behind - of_part)[part]) * CHUNK
    tokens = jnp.clip(starts[part + 1] - first, 0, CHUNK)
    return _Chunks(first, tokens, first == of_rows[part // parts], part % parts == 0, behind[-1])


def _chunk_of_head(corrects: bool, chunk: Chunk, states: Array) -> tuple[Array, Array]:
    return chunk_step(chunk, states, Products(_product, _product), chunk.keys.shape[1], corrects)


def _product(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    return jax.lax.dot_general(x, y, (((of_x,), (of_y,)), ((), ())), preferred_element_type=jnp.float32)


def _step(corrects: bool, inputs: DeltaInputs, states: Array) -> tuple[Array, Array]:
    """One token of each row: y [R, K, G, V] and new states [R, K, G, D, V]."""
    queries, keys, values, decay, rate = inputs
    states = states * jnp.exp(decay)[..., None, None]
    if corrects:
        values = values - jnp.einsum("rkd,rkgdv->rkgv", keys, states)
    change = rate[..., None] * values
    states = states + keys[:, :, None, :, None] * change[..., None, :]
    return jnp.einsum("rkd,rkgdv->rkgv", queries, states), states


def _normalised(inputs: DeltaInputs) -> DeltaInputs:
    """Keys of length one and queries of 1 / √D."""
    made = (each * jax.lax.rsqrt((each**2).sum(-1, keepdims=True) + EPS) for each in (inputs.queries, inputs.keys))
    queries, keys = made
    return inputs._replace(queries=queries * keys.shape[-1] ** -0.5, keys=keys)


BACKENDS: dict[str, Callable[..., Any]] = {"reference": reference, "triton": triton.delta_rule}


def delta_rule(backend: str, mesh: Mesh | None, key_heads: int) -> DeltaRule:
    """The rule of `backend` on a mesh: each device has some of the key heads with their value heads, or all of them
    where devices cannot share them evenly; nothing is communicated.
    """
    split = TP if mesh is not None and key_heads % mesh.size == 0 else None
    of_token, everywhere = PartitionSpec(None, split), PartitionSpec()
    inputs = DeltaInputs(*(of_token,) * len(DeltaInputs._fields))  # type: ignore[arg-type]
    states = PartitionSpec(None, None, split)
    return by_device(BACKENDS[backend], mesh, (inputs, states, everywhere), (of_token, states))


def mamba2(backend: str, mesh: Mesh | None, heads: int) -> DeltaRule:
    """Mamba 2 of `backend` on a mesh: values [T, heads, V], decay and rate [T, heads], queries and keys [T, groups, D],
    states [L, slots, heads, D, V] → y f32 [T, heads, V], and states. Each device has some of the heads, or all where
    devices cannot share them evenly. A group that several devices have heads of is repeated for each.
    """
    size = mesh.size if mesh is not None and heads % mesh.size == 0 else 1
    split = TP if size > 1 else None
    of_token, everywhere = PartitionSpec(None, split), PartitionSpec()
    specs = DeltaInputs(*(of_token,) * len(DeltaInputs._fields))  # type: ignore[arg-type]
    states = PartitionSpec(None, None, split)
    rule = partial(_of_groups, partial(BACKENDS[backend], corrects=False))
    by_heads = by_device(rule, mesh, (specs, states, everywhere), (of_token, states))

    def repeated(inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
        groups = inputs.keys.shape[1]
        count = next(each for each in (groups, size, heads) if each % groups == 0 == each % size)
        queries, keys = (jnp.repeat(each, count // groups, axis=1) for each in (inputs.queries, inputs.keys))
        y, new = by_heads(inputs._replace(queries=queries, keys=keys), states, batch)
        return y, new

    return repeated


def _of_groups(rule: DeltaRule, inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    """`rule` of heads that are not yet divided into groups, nor are their states [L, slots, heads, D, V]."""
    groups, heads = inputs.keys.shape[1], inputs.values.shape[1:]

    def divided(x: Array) -> Array:
        return x.reshape(len(x), groups, -1, *x.shape[2:])

    inputs = inputs._replace(values=divided(inputs.values), decay=divided(inputs.decay), rate=divided(inputs.rate))
    y, new = rule(inputs, states.reshape(*states.shape[:2], groups, -1, *states.shape[3:]), batch)
    return y.reshape(len(y), *heads), new.reshape(states.shape)
