"""The resampler: learned tokens read what the connector makes of a tile, and stand for it.

Its layers are the decoder's, over the learned tokens of each tile as if these came behind the tile's own in one
sequence. What they read is not changed by the layers, so its keys and values are written before each.

Legend: T tokens of the tower, S segments (tiles), L latents of a tile.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.attention import Attention
from jaxengine.model.decoder import run_layer
from jaxengine.model.layer import Layer, ResidualStream
from jaxengine.model.norm import Norm
from jaxengine.model.vision.segments import scratch, segment_batch
from jaxengine.ops import AttentionBias, Ops, StepBatch
from jaxengine.ops.cache import write
from jaxengine.ops.weight import in_order


class Resampler(nnx.Module):
    """What the connector made [T, hidden], and the segments' lengths [S] → [S * L, hidden]; `get` is the tower's."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], device: DeviceTraits, ops: Ops) -> None:
        self.spec = own = spec.resampler_spec
        self.device = device

        def named(i: int, name: str) -> Any:
            return get(f"resampler.layers.{i}.{name}")

        numbers, ops = range(own.num_layers), ops.for_heads(own.num_kv_heads)
        self.latents = nnx.Param(get("resampler.latents"))
        self.layers = nnx.List(Layer(own, own.kind(i), partial(named, i), ops) for i in numbers)
        self.context_norms = nnx.List(Norm.named("context_norm", own.norm, partial(named, i)) for i in numbers)
        self.final_norm = Norm.named("resampler.final_norm", own.norm, get)

    def __call__(self, context: Array, lengths: Array, most: int) -> Array:
        """`most`: tokens of the longest segment that there can be."""
        latents = self.latents[...]
        whole = segment_batch(lengths + len(latents), len(context) + lengths.size * len(latents), most + len(latents))
        batch = _of_latents(whole, lengths, len(latents))
        read = _of_context(whole, lengths, len(latents), len(context))
        keys, values = scratch(self.spec, [whole], context.dtype, self.device)
        stream = ResidualStream(jnp.tile(latents.astype(context.dtype), (lengths.size, 1)))
        for layer, norm in zip(self.layers, self.context_norms, strict=True):
            assert isinstance(layer.attention, Attention) and layer.attention_norm is not None
            order = layer.attention_norm.order  # the product takes its inputs in this order
            qkv = layer.attention.projected(in_order(norm(context), None if order is None else order[...]))
            keys, values = write(keys, qkv[:, :, -2], read), write(values, qkv[:, :, -1], read)
            stream, keys, values = run_layer(layer, stream, keys, values, None, AttentionBias(), batch)
        return self.final_norm(stream.sum())


def _of_latents(whole: StepBatch, lengths: Array, latents: int) -> StepBatch:
    """The batch of each segment's last tokens, of `whole`, in which `latents` follow each segment's `lengths`."""
    ends = jnp.cumsum(lengths + latents)
    own = ((ends - latents)[:, None] + jnp.arange(latents, dtype=jnp.int32)).ravel()  # [S * L]
    return replace(_taken(whole, own), tokens=jnp.asarray(own.size, jnp.int32))


def _of_context(whole: StepBatch, lengths: Array, latents: int, tokens: int) -> StepBatch:
    """The batch of the `tokens` in front of these; padding goes to page 0."""
    token = jnp.arange(tokens, dtype=jnp.int32)
    segment = (jnp.cumsum(lengths)[None, :] <= token[:, None]).sum(1, dtype=jnp.int32)
    real = segment < lengths.size
    taken = _taken(whole, jnp.where(real, token + segment * latents, 0))
    return replace(taken, page=jnp.where(real, taken.page, 0), tokens=lengths.sum())


def _taken(batch: StepBatch, tokens: Array) -> StepBatch:
    names = ("position", "rope_length", "row", "page", "offset", "noncausal_length")
    return replace(batch, **{name: getattr(batch, name)[tokens] for name in names})
