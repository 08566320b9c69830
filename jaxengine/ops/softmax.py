"""The softmax of attention scores as a running one (Milakov & Gimelshein 2018, arXiv 1805.02867), in f32: keys come in
blocks, each folded into what is known of those before. A masked block changes no bit of the result.

Legend: T queries of K x G heads of D dimensions, S keys of a block.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from jaxengine.ops.alibi import alibi
from jaxengine.ops.batch import AttentionBias
from jaxengine.ops.spec import AttentionSpec

MASKED = -1e30  # finite, so that MASKED - maximum is never NaN, even in a fully masked block

Running = tuple[Array, Array, Array]  # maximum [..], sum [..] and weighted values [.., D], all f32


def start(q: Array, sinks: Array | None, spec: AttentionSpec) -> Running:
    """In front of the first block; `q` [.., D]. A sink is a key without a value."""
    output = jnp.zeros((*q.shape[:-1], spec.value_dim(q.shape[-1])))
    if sinks is None:
        return jnp.full(q.shape[:-1], MASKED), jnp.zeros(q.shape[:-1]), output
    return jnp.broadcast_to(sinks, q.shape[:-1]), jnp.ones(q.shape[:-1]), output


def biased(scores: Array, position: Array, key: Array, spec: AttentionSpec, bias: AttentionBias) -> Array:
    """`scores` [T, K, G, S] of queries at `position` [T] and keys at `key` [S], capped and with the biases added."""
    if spec.softcap:
        scores = spec.softcap * jnp.tanh(scores / spec.softcap)
    if bias.slopes is not None:
        scores = scores + alibi(bias.slopes[..., None], position[:, None, None, None], key, spec)
    if bias.relative is None:
        return scores
    furthest = bias.relative.shape[-1] // 2
    distance = position[:, None] - key  # [T, S]
    relative = bias.relative[..., jnp.clip(distance, -furthest, furthest) + furthest]  # [K, G, T, S]
    return scores + jnp.moveaxis(relative, 2, 0)


def visible_keys(
    key: Array, position: Array, kv_length: Array, spec: AttentionSpec, unhidden: Array | None = None
) -> Array:
    """bool [T, S]: which of the keys at `key` [S] each query sees; position and kv_length [T], and unhidden [T] as of
    `StepBatch`.
    """
    visible = key < kv_length[:, None]
    if not spec.window:
        return visible
    near = position[:, None] - key < spec.window
    return visible & (near if unhidden is None else near | (key < unhidden[:, None]))


def absorb(running: Running, scores: Array, visible: Array, weigh: Callable[[Array], Array]) -> Running:
    """Fold a block's `scores` [.., S] into the running softmax; `weigh` sums its values by weights [.., S]."""
    maximum, total, output = running
    scores = jnp.where(visible, scores, MASKED)
    new = jnp.maximum(maximum, scores.max(-1))
    weights = jnp.exp(scores - jnp.maximum(new, MASKED / 2)[..., None])  # 0 where masked, even if everything is
    decay = jnp.exp(maximum - new)
    output = output * decay[..., None] + weigh(weights)
    return new, total * decay + weights.sum(-1), output


def finish(running: Running) -> Array:
    """What is attended, [.., D]; 0 for a query that saw nothing."""
    _, total, output = running
    return output / jnp.where(total == 0, 1, total)[..., None]
