"""Heads that draft: from the hidden state of which the next token was made to guesses of those behind it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.drafter import DRAFTER, DrafterHeads, Medusa, MLPSpeculator
from jaxengine.architecture.model import ModelSpec
from jaxengine.model.embedding import Head, without_padding
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import ACTIVATIONS
from jaxengine.ops.weight import Weight

EPSILON = 1e-6  # of the norms of an MLP speculator
SHARED_ROWS = 128  # whose logits exist at once where several guesses share the model's head


class Guesses(NamedTuple):
    """Of n rows, so many guesses each."""

    id: Array  # i32 [n, guesses]
    chance: Array  # f32 [n, guesses], how likely the drafter finds each


class MedusaHeads(nnx.Module):
    """Hidden states [n, hidden] → guesses. See `architecture.drafter.Medusa`."""

    def __init__(self, spec: Medusa, model: ModelSpec, get: Callable[[str], Any], head: Head) -> None:
        numbers = range(spec.guesses)
        self.tokens = model.tokens
        self.first = Linear.named(f"{DRAFTER}blocks", get) if spec.layers else None
        self.others = nnx.List(
            nnx.List(Linear.named(f"{DRAFTER}{i}.blocks.{layer}", get) for layer in range(1, spec.layers))
            for i in numbers
        )
        own = [Linear.named(f"{DRAFTER}{i}.head", get) for i in numbers] if spec.own_heads else []
        self.heads = nnx.List(own)
        self.shared = None if own else head

    def __call__(self, hidden: Array, last: Array) -> Guesses:
        inputs = self._inputs(hidden)
        if self.shared is None:
            logits = (_logits(head, x) for head, x in zip(self.heads, inputs, strict=True))
            return _side_by_side([likeliest(without_padding(each, self.tokens)) for each in logits])
        if len(inputs) * len(hidden) > SHARED_ROWS:
            return _side_by_side([likeliest(self.shared(x)) for x in inputs])
        found = likeliest(self.shared(jnp.concatenate(inputs)))  # the head is read once
        return Guesses(*(each.reshape(len(inputs), -1).T for each in found))

    def _inputs(self, hidden: Array) -> list[Array]:
        """What each head multiplies, [n, hidden].

        The first blocks are one product: as several with one input, XLA joined their matrices in every step on a GPU.
        """
        inputs = [hidden] * len(self.others)
        if self.first is not None:
            joined = hidden[:, None] + ACTIVATIONS["silu"](self.first(hidden))  # [n, guesses, hidden]
            inputs = [joined[:, i] for i in range(len(self.others))]
        for i, blocks in enumerate(self.others):
            for block in blocks:
                inputs[i] = inputs[i] + ACTIVATIONS["silu"](block(inputs[i]))
        return inputs


class MLPSpeculatorHeads(nnx.Module):
    """Hidden states [n, hidden] and the tokens made of them [n] → guesses. See `architecture.drafter.MLPSpeculator`."""

    def __init__(self, spec: MLPSpeculator, model: ModelSpec, get: Callable[[str], Any]) -> None:
        def parameter(i: int, name: str) -> Any:
            return get(f"{DRAFTER}{0 if spec.tied else i}.{name}")

        numbers, projects = range(spec.guesses), 2 if spec.tied else spec.guesses
        self.tokens = model.tokens
        self.scale_input = spec.scale_input
        self.state_weight, self.embedding_weight = spec.state_weight, spec.embedding_weight
        self.projects = nnx.List(Linear.named(f"{DRAFTER}{min(i, projects - 1)}.project", get) for i in numbers)
        self.embeddings = nnx.List(nnx.Param(parameter(i, "embedding")) for i in numbers)
        self.norms = nnx.List(nnx.Param(parameter(i, "norm")) for i in numbers)
        self.biases = nnx.List(nnx.Param(parameter(i, "norm_bias")) for i in numbers)
        self.heads = nnx.List(Linear(parameter(i, "head"), None) for i in numbers)

    def __call__(self, hidden: Array, last: Array) -> Guesses:
        state, token, guesses = hidden, last, []
        if self.scale_input:
            state = _normalised(state) / jnp.asarray(math.sqrt(2), state.dtype)
        for i, project in enumerate(self.projects):
            embedding: Weight = self.embeddings[i].get_value()
            state = project(state) * self.state_weight + embedding.rows(token) * self.embedding_weight
            state = ACTIVATIONS["gelu"](_normalised(state) * self.norms[i][...] + self.biases[i][...])
            guesses.append(likeliest(without_padding(_logits(self.heads[i], state), self.tokens)))
            token = guesses[-1].id
        return _side_by_side(guesses)


Drafter = MedusaHeads | MLPSpeculatorHeads


def drafter_of(spec: DrafterHeads, model: ModelSpec, get: Callable[[str], Any], head: Head) -> Drafter:
    """
    Args:
        model: for which it drafts, and whose `head` it may share.
        get: its parameters, by the names of `spec.parameters()`.
    """
    if isinstance(spec, Medusa):
        return MedusaHeads(spec, model, get, head)
    return MLPSpeculatorHeads(spec, model, get)


def _logits(head: Linear, x: Array) -> Array:
    return head(x, jnp.dtype(jnp.float32))


def likeliest(logits: Array) -> Guesses:
    """Of f32 [n, vocab], the likeliest id of each row, [n]."""
    ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return Guesses(ids, jnp.exp(logits.max(axis=-1) - jax.nn.logsumexp(logits, axis=-1)))


def _side_by_side(guesses: list[Guesses]) -> Guesses:
    return Guesses(*(jnp.stack(each, axis=1) for each in zip(*guesses, strict=True)))


def _normalised(x: Array) -> Array:
    """x over the root of its mean square, computed in f32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)).astype(x.dtype)
