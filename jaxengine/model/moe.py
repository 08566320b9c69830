"""Mixtures of experts: a router sends each token through a few of many MLPs, and only those are computed.

`jaxengine/ops/experts.py` computes the chosen experts. Legend: T tokens, k experts per token, E experts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import Experts, ModelSpec
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import MLP, Activated, rounded_once
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.experts import ExpertBiases, ExpertMLPs


class MixtureOfExperts(nnx.Module):
    """Router, experts and, where there is one, the shared expert: [T, hidden] → [T, hidden]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        assert spec.experts is not None
        self.router = Linear.named("router", get)
        self.gate_up = nnx.Param(get("experts_gate_up"))
        self.down = nnx.Param(get("experts_down"))
        bias = spec.experts.bias
        self.gate_up_bias = nnx.Param(get("experts_gate_up_bias")) if bias else None
        self.down_bias = nnx.Param(get("experts_down_bias")) if bias else None
        self.mlps = ExpertMLPs(Activated(spec.activation, spec.clamped_gate))
        self.experts = spec.experts
        shared = spec.experts.shared_ffn_size > 0
        self.shared = MLP(spec, lambda name: get(f"shared_{name}")) if shared else None
        self.shared_gate = Linear.named("shared_gate", get) if shared else None

    def __call__(self, x: Array, tokens: Array, adapters: AdapterTokens | None = None) -> Array:
        """x [T, hidden], of which the first `tokens`, i32 [], are real. Padding goes to no expert."""
        logits = self.router(x, jnp.dtype(jnp.float32), adapters)
        weights, chosen = route(self.experts, logits)  # [T, k]
        chosen = jnp.where(jnp.arange(x.shape[0])[:, None] < tokens, chosen, self.experts.count)
        mixed = self.mlps(x, weights, chosen, self.gate_up.get_value(), self.down.get_value(), self._biases())
        if self.shared is None or self.shared_gate is None:
            return mixed
        gate = rounded_once(jax.nn.sigmoid, self.shared_gate(x, adapters=adapters))
        return mixed + gate * self.shared(x, adapters)

    def _biases(self) -> ExpertBiases | None:
        if self.gate_up_bias is None or self.down_bias is None:
            return None
        return ExpertBiases(self.gate_up_bias[...], self.down_bias[...])


def route(experts: Experts, logits: Array) -> tuple[Array, Array]:
    """Router logits, f32 [T, E] → the chosen experts' weights, f32 [T, k], and numbers, i32 [T, k]."""
    if experts.routing == "sparse_mixer":
        return _sparse_mixer(logits, experts.jitter)
    weights, chosen = jax.lax.top_k(jax.nn.softmax(logits), experts.used)
    return weights / weights.sum(-1, keepdims=True) if experts.renormalise else weights, chosen


def _sparse_mixer(logits: Array, jitter: float) -> tuple[Array, Array]:
    """The best expert and the best of the others, each with a softmax over those near it (arXiv 2409.12136)."""
    rest, weights, chosen = logits, [], []
    for _ in range(2):
        best = rest.max(-1, keepdims=True)
        far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * jitter
        index = rest.argmax(-1, keepdims=True)
        weights.append(jnp.take_along_axis(jax.nn.softmax(jnp.where(far, -jnp.inf, rest)), index, axis=-1))
        chosen.append(index)
        rest = jnp.where(jnp.arange(logits.shape[-1]) == index, -jnp.inf, rest)
    return jnp.concatenate(weights, axis=-1), jnp.concatenate(chosen, axis=-1)
