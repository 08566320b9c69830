"""The gated delta rule over a step's ragged rows, each continuing from the states in its sequence's slot.

    S_t = exp(g_t) S_{t-1}        S_t = S_t + k_t ⊗ β_t (v_t - k_t S_t)        y_t = q_t S_t / √D

(Yang et al. 2024, arXiv 2412.06464, equation 10), of queries and keys of length one. A row whose first token has
position 0 starts from zero, whatever its slot holds, because a slot is not cleared when another sequence takes it. A
back end is a function of one device's heads; `delta_rule` runs it on a mesh. `reference` is plain JAX, the CPU's path
and the oracle of the GPU kernel in `triton/delta_rule`. It computes token by token, so that nothing larger than one
sequence's states exists beside the slots.

Legend: L layers in the caches, T tokens, K key heads, G value heads of each, D and V their dimensions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops.batch import DeltaInputs, StepBatch, unfolded
from jaxengine.ops.triton import delta_rule as triton
from jaxengine.sharding import TP, by_device

DeltaRule = Callable[[DeltaInputs, Array, StepBatch], tuple[Array, Array]]

EPS = 1e-6  # beside the squares of a query or key, as in transformers' `l2norm` (qwen3_next)


def reference(inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    """states [L, slots, K, G, D, V] → y f32 [T, K, G, V], 0 for padding in a ragged step, and states after each row's
    last token.
    """
    return (_ragged if batch.ragged else _one_token_each)(_normalised(inputs), states, unfolded(batch))


def _one_token_each(inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    known = (batch.position > 0)[:, None, None, None, None]
    y, new = _step(inputs, jnp.where(known, states[batch.layer, batch.page], 0))
    return y, states.at[batch.layer, batch.page].set(new, mode="drop")


def _ragged(inputs: DeltaInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    def token(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, states = carry
        page = batch.page[t]
        old = jnp.where(batch.position[t] > 0, states[batch.layer, page], 0)  # [K, G, D, V]
        made, new = _step(jax.tree.map(lambda each: each[t], inputs), old)
        return y.at[t].set(made), states.at[batch.layer, page].set(new)

    y = jnp.zeros(inputs.values.shape, jnp.float32)
    return jax.lax.fori_loop(0, batch.tokens, token, (y, states))


def _step(inputs: DeltaInputs, states: Array) -> tuple[Array, Array]:
    """One token of each row: y [..., K, G, V] and new states [..., K, G, D, V]."""
    queries, keys, values, decay, rate = inputs
    states = states * jnp.exp(decay)[..., None, None]
    known = jnp.einsum("...kd,...kgdv->...kgv", keys, states)
    change = rate[..., None] * (values - known)
    states = states + keys[..., None, :, None] * change[..., None, :]
    return jnp.einsum("...kd,...kgdv->...kgv", queries, states), states


def _normalised(inputs: DeltaInputs) -> DeltaInputs:
    """All in f32, keys of length one and queries of 1 / √D."""
    queries, keys, values = (each.astype(jnp.float32) for each in inputs[:3])
    queries, keys = (each * jax.lax.rsqrt((each**2).sum(-1, keepdims=True) + EPS) for each in (queries, keys))
    return inputs._replace(queries=queries * keys.shape[-1] ** -0.5, keys=keys, values=values)


DELTA_RULES: dict[str, DeltaRule] = {"reference": reference, "triton": triton.delta_rule}


def delta_rule(backend: str, mesh: Mesh | None, key_heads: int) -> DeltaRule:
    """The rule of `backend` on a mesh: each device has some of the key heads with their value heads, or all of them
    where devices cannot share them evenly; nothing is communicated.
    """
    split = TP if mesh is not None and key_heads % mesh.size == 0 else None
    of_token, everywhere = PartitionSpec(None, split), PartitionSpec()
    inputs = DeltaInputs(*(of_token,) * len(DeltaInputs._fields))  # type: ignore[arg-type]
    states = PartitionSpec(None, None, split)
    return by_device(DELTA_RULES[backend], mesh, (inputs, states, everywhere), (of_token, states))
