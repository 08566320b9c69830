"""The decoder: embedding, layers, final norm. One class for every decoder-only family; `ModelSpec` is the switch.

Layers are unrolled, each a call of one inner `jit`, so that tracing costs one layer: `lax.scan` over stacked weights
would copy every layer's weights each step on a GPU. Legend: T tokens, R rows, K key/value heads, G query heads per
key/value head, D head dimension.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax import Array

from jaxengine.model.linear import Linear, input_major
from jaxengine.model.norm import RMSNorm
from jaxengine.model.rope import angles, rotate
from jaxengine.model.spec import Activation, ModelSpec
from jaxengine.ops import AttentionBatch, PagedAttention

Layers = Sequence[tuple[Array, Array]]  # each layer's (keys, values): [pages, page_size, K, D]

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


class Layer(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], platform: str, attend: PagedAttention) -> None:
        def linear(name: str, bias: str, inputs: int = 1) -> Linear:
            cpu = input_major(platform)
            return Linear(get(name), get(bias), inputs=inputs, input_major=cpu, flat=cpu)

        self.attention_norm = RMSNorm(get("attention_norm"), spec.norm_eps)
        self.qkv = linear("qkv", "qkv_bias")
        self.out = linear("out", "out_bias", inputs=3)
        self.mlp_norm = RMSNorm(get("mlp_norm"), spec.norm_eps)
        self.gate_up = linear("gate_up", "gate_up_bias")
        self.down = linear("down", "down_bias")
        self.activation = spec.activation
        self.attend = attend

    def __call__(
        self, x: Array, keys: Array, values: Array, cos: Array, sin: Array, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        qkv = self.qkv(self.attention_norm(x))  # [T, K, G+2, D]
        q_and_k = rotate(qkv[:, :, :-1], cos, sin)  # [T, K, G+1, D]
        q, k, v = q_and_k[:, :, :-1], q_and_k[:, :, -1], qkv[:, :, -1]  # [T, K, G, D], [T, K, D], [T, K, D]
        attended, keys, values = self.attend(q, k, v, keys, values, batch)  # [T, K, G, D]
        x = x + self.out(attended)
        gate_up = self.gate_up(self.mlp_norm(x))  # [T, 2, F]
        x = x + self.down(ACTIVATIONS[self.activation](gate_up[:, 0]) * gate_up[:, 1])
        return x, keys, values


@jax.jit
def run_layer(
    layer: Layer, x: Array, keys: Array, values: Array, cos: Array, sin: Array, batch: AttentionBatch
) -> tuple[Array, Array, Array]:
    """One layer under a jit of its own: identical layers are traced and lowered once."""
    return layer(x, keys, values, cos, sin, batch)


class Decoder(nnx.Module):
    """Token ids to hidden states, writing keys and values into pages on the way.

    Args:
        spec: the model.
        parameters: arrays (or their abstract shapes) by the names of `parameter_table`, in device layout.
        platform: "cpu", "cuda", …; decides the layout of matrices.
        attend: paged attention for this mesh.
    """

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], platform: str, attend: PagedAttention) -> None:
        self.spec = spec
        self.embedding = nnx.Param(parameters["embedding"])
        self.layers = nnx.List(
            Layer(spec, lambda name, i=i: parameters.get(f"layers.{i}.{name}"), platform, attend)  # type: ignore[misc]
            for i in range(spec.num_layers)
        )
        self.final_norm = RMSNorm(parameters["final_norm"], spec.norm_eps)

    def __call__(self, ids: Array, layers: Layers, batch: AttentionBatch) -> tuple[Array, Layers]:
        """ids [T] → normalised hidden states [T, hidden], and the caches with these tokens written."""
        x = self.embedding[...][ids]  # [T, hidden]
        cos, sin = angles(self.spec.rope, self.spec.head_dim, batch.position, batch.prompt_length)
        written = []
        for layer, (keys, values) in zip(self.layers, layers, strict=True):
            x, keys, values = run_layer(layer, x, keys, values, cos, sin, batch)
            written.append((keys, values))
        return self.final_norm(x), written
