"""The two ends of a decoder: token ids to the residual stream, hidden states to logits."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.image_rows import Images
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops.weight import Weight

# The logit of rows without a token. It is finite, because a step checks that its logits are.
PADDING = float(jnp.finfo(jnp.float32).min)


class Embedding(nnx.Module):
    """ids [T] at positions [T] → [T, hidden]. Rows of images stand in for scaled embeddings, and are not scaled."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        self.rows = nnx.Param(get("embedding"))
        self.scale = spec.embedding.scale
        projected = spec.embedding_width != spec.hidden_size
        self.project = Linear.named("project_in", get) if projected else None
        self.positions = nnx.Param(get("positions")) if spec.embedding.positions else None
        self.norm = Norm.named("embedding_norm", spec.norm, get) if spec.embedding.norm else None

    def __call__(self, ids: Array, position: Array, images: Images | None = None) -> Array:
        weight: Weight = self.rows.get_value()
        x = weight.rows(ids)  # [T, width]
        if self.scale != 1:
            x = x * jnp.asarray(self.scale, x.dtype)  # Gemma rounds the factor to the weights' type
        if self.project is not None:
            x = self.project(x)
        if images is not None:
            x = images.embedded(x)
        if self.positions is not None:
            x = x + self.positions[...][position]
        return x if self.norm is None else self.norm(x)


class Head(nnx.Module):
    """Hidden states [T, hidden] → logits, f32 [T, vocab]. The vocabulary's padding has the logit `PADDING`."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        projected = spec.embedding_width != spec.hidden_size
        self.project = Linear.named("project_out", get) if projected else None
        self.linear = Linear.named("head", get)
        self.scale = spec.head.scale
        self.softcap = spec.head.softcap
        self.tokens = spec.tokens

    def __call__(self, hidden: Array) -> Array:
        if self.project is not None:
            hidden = self.project(hidden)
        logits = self.linear(hidden, jnp.dtype(jnp.float32))
        if self.scale != 1:
            logits = logits * self.scale
        if self.softcap:
            logits = self.softcap * jnp.tanh(logits / self.softcap)
        return without_padding(logits, self.tokens)


def without_padding(logits: Array, tokens: int) -> Array:
    """`logits` [T, vocab], with `PADDING` for the ids from `tokens` on, which are no tokens."""
    vocab = logits.shape[1]
    return logits if tokens == vocab else jnp.where(jnp.arange(vocab) < tokens, logits, PADDING)
