"""Mixtures of experts: each token passes through a few of many MLPs, and only those are computed.

Pairs of (token, expert) are sorted by expert and cut into blocks of rows that share one expert; each block is two
ordinary products with that expert's matrices. Work is proportional to the pairs, plus at most one padded block per
expert: nothing ever has the size tokens x experts (which `lax.ragged_dot` has on NVIDIA GPUs, JAX 0.10). With fewer
pairs than experts a block is a single pair, and of a handful of those the loop is unrolled.

Legend: T tokens, k experts per token, E experts, P = T k pairs, B rows of a block, N blocks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.model.linear import Linear, input_major
from jaxengine.model.mlp import ACTIVATIONS, MLP
from jaxengine.model.spec import Experts, ModelSpec

MAX_BLOCK = 128  # rows
UNROLLED = 16  # blocks


class MixtureOfExperts(nnx.Module):
    """Router, experts and, where there is one, the shared expert: [T, hidden] → [T, hidden]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], platform: str) -> None:
        assert spec.experts is not None
        self.router = Linear.named("router", get, platform)
        self.gate_up = nnx.Param(get("experts_gate_up"))  # [E, hidden, 2, F] if input_major, else [E, 2, F, hidden]
        self.down = nnx.Param(get("experts_down"))  # [E, F, hidden], or [E, hidden, F]
        self.input_major = input_major(platform)
        self.experts = spec.experts
        self.activation = spec.activation
        self.gated = spec.gated
        shared = spec.experts.shared_ffn_size > 0
        self.shared = MLP(spec, lambda name: get(f"shared_{name}"), platform) if shared else None
        self.shared_gate = Linear.named("shared_gate", get, platform) if shared else None

    def __call__(self, x: Array) -> Array:
        weights, chosen = route(self.experts, self.router(x, jnp.dtype(jnp.float32)))  # [T, k]
        y = self._experts(x, chosen)  # [T, k, hidden]
        mixed = jnp.einsum("tk,tkh->th", weights, y.astype(jnp.float32)).astype(x.dtype)
        if self.shared is None or self.shared_gate is None:
            return mixed
        return mixed + jax.nn.sigmoid(self.shared_gate(x)) * self.shared(x)

    def _experts(self, x: Array, chosen: Array) -> Array:
        used = chosen.shape[1]
        pairs, experts, slot = blocks(chosen.reshape(-1), self.experts.count)
        rows = x.at[pairs // used].get(mode="fill", fill_value=0)  # [N, B, hidden]
        gate_up, down = self.gate_up[...], self.down[...]

        def block(_: None, part: tuple[Array, Array]) -> tuple[None, Array]:
            rows, expert = part
            return None, self._mlp(rows, gate_up[expert], down[expert])

        unroll = len(experts) if len(experts) <= UNROLLED else 1
        _, y = jax.lax.scan(block, None, (rows, experts), unroll=unroll)  # [N, B, hidden]
        return y.reshape(-1, x.shape[1])[slot].reshape(*chosen.shape, -1)

    def _mlp(self, x: Array, gate_up: Array, down: Array) -> Array:
        """One expert: x [B, hidden]."""
        axis = 0 if self.input_major else 1
        matrix = gate_up.reshape((x.shape[1], -1) if self.input_major else (-1, x.shape[1]))
        inner = jax.lax.dot_general(x, matrix, (((1,), (axis,)), ((), ())))
        inner = inner.reshape(len(x), 2 if self.gated else 1, -1)
        activated = ACTIVATIONS[self.activation](inner[:, 0])
        if self.gated:
            activated = activated * inner[:, 1]
        return jax.lax.dot_general(activated, down, (((1,), (axis,)), ((), ())))


def blocks(expert: Array, count: int) -> tuple[Array, Array, Array]:
    """Cut P pairs, of which pair p goes to `expert[p]` of `count`, into blocks of one expert.

    Returns:
        pairs [N, B], the pair each row of a block holds, out of range where it holds none; the expert of each block
        [N]; and the row, of all N B, that holds each pair [P].
    """
    size = len(expert)
    rows = min(MAX_BLOCK, 1 << (size // count).bit_length())
    if size <= count:
        return jnp.arange(size)[:, None], expert, jnp.arange(size)
    number = size // rows + count
    counts = jnp.bincount(expert, length=count)
    taken = (counts + rows - 1) // rows  # blocks of each expert
    end = jnp.cumsum(taken)
    order = jnp.argsort(expert)  # [P], pairs by expert
    rank = jnp.arange(size) - (jnp.cumsum(counts) - counts)[expert[order]]  # of a pair among its expert's
    slot = jnp.zeros(size, jnp.int32).at[order].set((end - taken)[expert[order]] * rows + rank)
    pairs = jnp.full(number * rows, jnp.iinfo(jnp.int32).max).at[slot].set(jnp.arange(size)).reshape(number, rows)
    return pairs, jnp.searchsorted(end, jnp.arange(number), side="right").clip(max=count - 1), slot


def route(experts: Experts, logits: Array) -> tuple[Array, Array]:
    """Router logits, f32 [T, E] → weights, f32 [T, k], and the experts they are of, i32 [T, k]."""
    if experts.routing == "sparse_mixer":
        return _sparse_mixer(logits, experts.jitter)
    weights, chosen = jax.lax.top_k(jax.nn.softmax(logits), experts.used)
    return weights / weights.sum(-1, keepdims=True) if experts.renormalise else weights, chosen


def _sparse_mixer(logits: Array, jitter: float) -> tuple[Array, Array]:
    """Two experts, the best and the best of the others, each weighed among those near it (arXiv 2409.12136)."""
    rest, weights, chosen = logits, [], []
    for _ in range(2):
        best = rest.max(-1, keepdims=True)
        far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * jitter
        index = rest.argmax(-1, keepdims=True)
        weights.append(jnp.take_along_axis(jax.nn.softmax(jnp.where(far, -jnp.inf, rest)), index, axis=-1))
        chosen.append(index)
        rest = jnp.where(jnp.arange(logits.shape[-1]) == index, -jnp.inf, rest)
    return jnp.concatenate(weights, axis=-1), jnp.concatenate(chosen, axis=-1)
