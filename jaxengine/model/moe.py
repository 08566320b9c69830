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
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import MLP, Activated
from jaxengine.model.norm import Norm
from jaxengine.model.rounding import rounded_once, times
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.experts import ExpertBiases, ExpertMLPs

TINY = 1e-20  # what DeepSeek adds to a sum of weights


class MixtureOfExperts(nnx.Module):
    """Router, experts and, where there is one, the shared expert: [T, hidden] → [T, hidden]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        assert spec.experts is not None
        self.router = Linear.named("router", get)
        self.choice_bias = nnx.Param(get("router_choice_bias")) if spec.experts.choice_bias else None
        self.learned_scale = nnx.Param(get("router_scale")) if spec.experts.learned_scale else None
        self.gate_up = nnx.Param(get("experts_gate_up"))
        self.down = nnx.Param(get("experts_down"))
        bias = spec.experts.bias
        self.gate_up_bias = nnx.Param(get("experts_gate_up_bias")) if bias else None
        self.down_bias = nnx.Param(get("experts_down_bias")) if bias else None
        self.mlps = ExpertMLPs(Activated(spec.activation, spec.clamped_gate))
        self.experts = spec.experts
        shared = spec.experts.shared_ffn_size > 0
        self.shared = MLP(spec, lambda name: get(f"shared_{name}")) if shared else None
        self.shared_gate = Linear.named("shared_gate", get) if shared and spec.experts.shared_gate else None
        self.norm = Norm.named("experts_norm", spec.norm, get) if spec.experts.norm else None

    def __call__(
        self, x: Array, tokens: Array, adapters: AdapterTokens | None = None, judged: Array | None = None
    ) -> Array:
        """x [T, hidden], of which the first `tokens`, i32 [], are real. Padding goes to no expert. The router reads
        `judged` [T, hidden], if it is another.
        """
        logits = self.router(x if judged is None else judged, jnp.dtype(jnp.float32), adapters)
        bias = None if self.choice_bias is None else self.choice_bias[...]
        weights, chosen = route(self.experts, logits, bias)  # [T, k]
        if self.learned_scale is not None:
            weights = weights * self.learned_scale[...].astype(jnp.float32)[chosen]
        chosen = jnp.where(jnp.arange(x.shape[0])[:, None] < tokens, chosen, self.experts.count)
        mixed = self.mlps(x, weights, chosen, self.gate_up.get_value(), self.down.get_value(), self._biases())
        if self.shared is not None:
            mixed = mixed + self._of_every_token(self.shared, x, adapters)
        return mixed if self.norm is None else self.norm(mixed)

    def _of_every_token(self, mlp: MLP, x: Array, adapters: AdapterTokens | None) -> Array:
        shared = mlp(x, adapters)
        if self.shared_gate is not None:
            shared = rounded_once(jax.nn.sigmoid, self.shared_gate(x, adapters=adapters)) * shared
        return shared

    def _biases(self) -> ExpertBiases | None:
        if self.gate_up_bias is None or self.down_bias is None:
            return None
        return ExpertBiases(self.gate_up_bias[...], self.down_bias[...])


class ExpertsBeside(nnx.Module):
    """Experts beside a layer's MLP, as in Gemma 4. Both read the residual stream, each through a norm of its own, and
    each has one behind it; what they make is added. The router reads the stream normalised without weights, times
    learned factors and the root of 1 / hidden.
    """

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.mixture = MixtureOfExperts(spec, get)
        self.router_norm = Norm(NormSpec("rms", spec.norm.eps), get("router_norm"), None)
        self.factor = spec.hidden_size**-0.5
        self.mlp_norm = Norm.named("mlp_inner_norm", spec.norm, get)
        self.norm = Norm.named("experts_norm", spec.norm, get)
        self.post_norm = Norm.named("experts_post_norm", spec.norm, get)

    def __call__(self, x: Array, made: Array, tokens: Array, adapters: AdapterTokens | None = None) -> Array:
        """The residual stream x [T, hidden], and what the MLP has made of it → both branches' sum."""
        judged = times(self.router_norm(x), self.factor)
        mixed = self.mixture(self.norm(x), tokens, adapters, judged)
        return self.mlp_norm(made) + self.post_norm(mixed)


def route(experts: Experts, logits: Array, choice_bias: Array | None = None) -> tuple[Array, Array]:
    """Router logits, f32 [T, E], and what is added to scores for the choice, f32 [E] → the chosen experts' weights, f32
    [T, k], and numbers, i32 [T, k].
    """
    if experts.routing == "sparse_mixer":
        return _sparse_mixer(logits, experts.jitter)
    scores = jax.nn.softmax(logits) if experts.routing == "softmax" else jax.nn.sigmoid(logits)
    weights, chosen = _best(experts, scores, choice_bias)
    if experts.renormalise:
        total = weights.sum(-1, keepdims=True)
        weights = weights / (total if experts.routing == "softmax" else total + TINY)
    return weights if experts.scale == 1 else weights * experts.scale, chosen


def _best(experts: Experts, scores: Array, choice_bias: Array | None) -> tuple[Array, Array]:
    if choice_bias is None and experts.used_groups == experts.groups:
        return jax.lax.top_k(scores, experts.used)
    judged = _of_best_groups(experts, scores if choice_bias is None else scores + choice_bias)
    chosen = jax.lax.top_k(judged, experts.used)[1]
    return jnp.take_along_axis(scores, chosen, axis=-1), chosen


def _of_best_groups(experts: Experts, judged: Array) -> Array:
    """`judged` [T, E], -inf but in the groups that a token uses."""
    if experts.used_groups == experts.groups:
        return judged
    grouped = judged.reshape(len(judged), experts.groups, -1)  # [T, groups, experts of one]
    sums = jax.lax.top_k(grouped, experts.judges)[0].sum(-1)  # [T, groups]
    used = jax.lax.top_k(sums, experts.used_groups)[1]  # [T, used groups]
    is_used = (used[:, :, None] == jnp.arange(experts.groups)).any(1)  # [T, groups]
    return jnp.where(is_used[:, :, None], grouped, -jnp.inf).reshape(judged.shape)


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
