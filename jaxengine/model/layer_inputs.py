"""What each layer reads of a token beside the residual stream: Gemma 4's per-layer embeddings, as in transformers.

A table has a row for each token and layer. To it comes what a projection makes of the token's embedding, normalised.
The layer multiplies its own row by what a gate makes of the residual stream, and adds the product, projected and
normalised.

Legend: T tokens, L layers, W width of a layer's row.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import ACTIVATIONS
from jaxengine.model.norm import Norm
from jaxengine.model.rounding import times
from jaxengine.ops.adapters import AdapterTokens


class LayerInputs(nnx.Module):
    """ids [T] and their embeddings [T, hidden] → the rows of all layers, [T, L, W]."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.rows = nnx.Param(get("layer_embedding"))  # [vocab, L·W]
        self.projection = Linear.named("layer_projection", get)
        self.norm = Norm.named("layer_input_norm", spec.norm, get)
        self.shape = spec.num_layers, spec.embedding.layer_width
        self.factor = spec.hidden_size**-0.5

    def __call__(self, ids: Array, embedded: Array) -> Array:
        rows = self.rows[...][ids].reshape(ids.shape[0], *self.shape)
        rows = rows * jnp.asarray(math.sqrt(self.shape[1]), rows.dtype)  # rounded, as the factor of the embedding is
        projected = self.norm(times(self.projection(embedded), self.factor))
        return times(projected + rows, 2**-0.5)


class LayerInput(nnx.Module):
    """The residual stream [T, hidden] and a layer's own rows [T, W] → what is added to the stream."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.gate = Linear.named("input_gate", get)
        self.out = Linear.named("input_out", get)
        self.norm = Norm.named("input_norm", spec.norm, get)
        self.activation = ACTIVATIONS[spec.activation]

    def __call__(self, x: Array, rows: Array, adapters: AdapterTokens | None = None) -> Array:
        gated = self.activation(self.gate(x, adapters=adapters)) * rows
        return self.norm(self.out(gated, adapters=adapters))
