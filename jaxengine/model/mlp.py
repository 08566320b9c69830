"""The feed-forward branch of a layer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import Activation, ClampedGate, ModelSpec
from jaxengine.model.linear import Linear
from jaxengine.model.rounding import rounded_once, times
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.gelu import gelu

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": partial(rounded_once, jax.nn.silu),
    "gelu": gelu,
    "gelu_tanh": partial(rounded_once, partial(jax.nn.gelu, approximate=True)),
    "quick_gelu": partial(rounded_once, lambda x: x * jax.nn.sigmoid(1.702 * x)),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


@dataclass(frozen=True)
class Activated:
    """What an MLP makes of its first product or two: act(up), act(gate) · up, or what a clamped gate makes of both."""

    activation: Activation = "silu"
    clamped: ClampedGate | None = None
    gate_scale: float = 1.0

    def __call__(self, gate: Array, up: Array | None = None) -> Array:
        gate = times(gate, self.gate_scale)
        if up is None:
            return ACTIVATIONS[self.activation](gate)
        if self.clamped is None:
            return ACTIVATIONS[self.activation](gate) * up
        return rounded_once(partial(_clamped, self.clamped), gate, up)


def _clamped(spec: ClampedGate, gate: Array, up: Array) -> Array:
    gate, up = jnp.minimum(gate, spec.limit), jnp.clip(up, -spec.limit, spec.limit)
    return (up + 1) * gate * jax.nn.sigmoid(spec.alpha * gate)


class MLP(nnx.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202): [T, hidden] → [T, hidden]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.gate_up = Linear.named("gate_up", get)
        self.down = Linear.named("down", get)
        self.activated = Activated(spec.activation, spec.clamped_gate, spec.gate_scale)
        self.scale = spec.mlp_scale

    def __call__(self, x: Array, adapters: AdapterTokens | None = None) -> Array:
        inner = self.gate_up.activated(x, self.activated, adapters)  # [T, ffn]
        return times(self.down(inner, adapters=adapters), self.scale)
