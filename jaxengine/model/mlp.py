"""The feed-forward branch of a layer."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array

from jaxengine.architecture.model import Activation, ModelSpec
from jaxengine.model.linear import Linear

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


class MLP(nnx.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202): [T, hidden] → [T, hidden]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.gate_up = Linear.named("gate_up", get)
        self.down = Linear.named("down", get)
        self.activation = spec.activation
        self.gated = spec.gated

    def __call__(self, x: Array) -> Array:
        inner = self.gate_up(x)  # [T, 2 or 1, ffn]
        activated = ACTIVATIONS[self.activation](inner[:, 0])
        return self.down(activated * inner[:, 1] if self.gated else activated)
