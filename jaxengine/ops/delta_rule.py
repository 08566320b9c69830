"""The gated delta rule over a step's ragged rows, each continuing from the states in its sequence's slot; and Mamba 2,
which is the same without the correction of what the states already say.

    S_t = exp(g_t) S_{t-1}        S_t = S_t + k_t ⊗ β_t (v_t - k_t S_t)        y_t = q_t S_t / √D

(Yang et al. 2024, arXiv 2412.06464, equation 10), of queries and keys of length one. For Mamba 2 (Dao & Gu 2024, arXiv
2405.21060, section 2), with C, B, x and Δ for q, k, v and β, which are taken as they are, it is

    S_t = exp(g_t) S_{t-1}        S_t = S_t + B_t ⊗ Δ_t x_t                    y_t = C_t S_t

A row whose first token has position 0 starts from zero, whatever its slot holds, because a slot is not cleared when
another sequence takes it. A back end is a function of one device's heads; `delta_rule` and `mamba2` run it on a mesh.
`reference` is plain JAX, the CPU's path and the oracle of the GPU kernel in `triton/delta_rule`. It computes token by
token, so that nothing larger than one sequence's states exists beside the slots.

Legend: L layers in the caches, T tokens, K key heads, G value heads of each, D and V their dimensions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops.batch import DeltaInputs, StepBatch, unfolded
from jaxengine.ops.triton import delta_rule as triton
from jaxengine.sharding import TP, by_device

DeltaRule = Callable[[DeltaInputs, Array, StepBatch], tuple[Array, Array]]
Step = Callable[[DeltaInputs, Array], tuple[Array, Array]]

EPS = 1e-6  # beside the squares of a query or key, as in transformers' `l2norm` (qwen3_next)


def reference(inputs: DeltaInputs, states: Array, batch: StepBatch, corrects: bool = True) -> tuple[Array, Array]:
    """states [L, slots, K, G, D, V] → y f32 [T, K, G, V], 0 for padding in a ragged step, and states after each row's
    last token.

    Args:
        corrects: it is the delta rule; else Mamba 2.
    """
    inputs = jax.tree.map(lambda each: each.astype(jnp.float32), inputs)
    if corrects:
        inputs = _normalised(inputs)
    return (_ragged if batch.ragged else _one_token_each)(partial(_step, corrects), inputs, states, unfolded(batch))


def _one_token_each(step: Step, inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    known = (batch.position > 0)[:, None, None, None, None]
    y, new = step(inputs, jnp.where(known, states[batch.layer, batch.page], 0))
    return y, states.at[batch.layer, batch.page].set(new, mode="drop")


def _ragged(step: Step, inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    def token(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, states = carry
        page = batch.page[t]
        old = jnp.where(batch.position[t] > 0, states[batch.layer, page], 0)  # [K, G, D, V]
        made, new = step(jax.tree.map(lambda each: each[t], inputs), old)
        return y.at[t].set(made), states.at[batch.layer, page].set(new)

    y = jnp.zeros(inputs.values.shape, jnp.float32)
    return jax.lax.fori_loop(0, batch.tokens, token, (y, states))


def _step(corrects: bool, inputs: DeltaInputs, states: Array) -> tuple[Array, Array]:
    """One token of each row: y [..., K, G, V] and new states [..., K, G, D, V]."""
    queries, keys, values, decay, rate = inputs
    states = states * jnp.exp(decay)[..., None, None]
    if corrects:
        values = values - jnp.einsum("...kd,...kgdv->...kgv", keys, states)
    change = rate[..., None] * values
    states = states + keys[..., None, :, None] * change[..., None, :]
    return jnp.einsum("...kd,...kgdv->...kgv", queries, states), states


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
