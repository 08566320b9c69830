"""A tower in which all tiles of a picture see each other, and what they are padded with (Llama 3.2 Vision: Grattafiori
et al. 2024, arXiv 2407.21783, section 7). Where things lie, `tiled_packing` has computed.

Behind the post-norm are layers whose branches have gates. What the text model reads is what these have made, and in
front of it what chosen layers before have, feature by feature.

Legend: P patches, T tokens, D the tower's width, S pictures.
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
from jaxengine.model.decoder import run_layer
from jaxengine.model.layer import Layer, ResidualStream
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.model.vision.packing import EncodeShape, tower_tokens
from jaxengine.model.vision.segments import scratch, segment_batch
from jaxengine.model.vision.tiled_packing import CLASS, NOTHING, picture_tokens
from jaxengine.ops import AttentionBias, Ops, StepBatch

Fields = dict[str, Array]


class TiledTower(nnx.Module):
    """patches [P, patch_values] → features [T, feature_size]; `get` finds parameters by names without "vision."."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], device: DeviceTraits, ops: Ops) -> None:
        assert spec.vision is not None
        tower = spec.vision.tower
        self.vision, self.layer_spec, self.device = spec.vision, spec.tower_spec, device
        ops = ops.for_heads(tower.num_heads)

        def layers(name: str, own: ModelSpec) -> Any:
            def of_layer(i: int, parameter: str) -> Any:
                return get(f"{name}.{i}.{parameter}")

            return nnx.List(Layer(own, own.kind(i), partial(of_layer, i), ops) for i in range(own.num_layers))

        self.embedding = TiledEmbedding(spec, get)
        self.layers = layers("layers", self.layer_spec)
        self.post_norm = Norm.named("post_norm", tower.norm, get)
        self.post_tiles = GatedTable("post_tiles", tower.hidden_size, get)
        self.global_layers = layers("global_layers", spec.global_spec)

    def tapped(self, shape: EncodeShape, patches: Array, fields: Fields) -> tuple[Array, list[Array]]:
        """As `Tower` has it; there is no deepstack."""
        return self(shape, patches, fields), []

    def __call__(self, shape: EncodeShape, patches: Array, fields: Fields) -> Array:
        stream = ResidualStream(self.embedding(shape, patches, fields))
        batch = _batch(fields["lengths"], tower_tokens(self.vision, shape), picture_tokens(self.vision))
        caches = scratch(self.layer_spec, [batch], stream.x.dtype, self.device)
        tapped = {0: stream.sum()} if 0 in self.vision.features else {}
        for i, layer in enumerate(self.layers, 1):
            stream, *caches = run_layer(layer, stream, *caches, None, AttentionBias(), batch)
            if i in self.vision.features:
                tapped[i] = stream.sum()
        x = self.post_norm(stream.sum())
        stream = ResidualStream(x + self.post_tiles(fields["tile"]).astype(x.dtype))
        for layer in self.global_layers:
            stream, *caches = run_layer(layer, stream, *caches, None, AttentionBias(), batch)
        side_by_side = jnp.stack([tapped[i] for i in self.vision.features], axis=-1)  # [T, D, features]
        return jnp.concatenate([stream.sum(), side_by_side.reshape(len(x), -1)], axis=-1)


class TiledEmbedding(nnx.Module):
    """patches [P, patch_values] → [T, D]: embedded, class tokens put in, positions added, normalised; 0 for padding."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        assert spec.vision is not None
        tower = spec.vision.tower
        self.tokens = tower.tokens
        self.patch = Linear.named("patch", get)
        self.class_token = nnx.Param(get("class_token"))
        self.tiles = GatedTable("pre_tiles", tower.hidden_size, get)
        self.positions = nnx.Param(get("positions"))
        self.tile_positions = GatedTable("tile_positions", tower.hidden_size, get, "positions_gate")
        self.pre_norm = Norm.named("pre_norm", tower.norm, get)

    def __call__(self, shape: EncodeShape, patches: Array, fields: Fields) -> Array:
        x = self.patch(patches.astype(self.patch.weight.get_value().values.dtype))
        blank = jnp.zeros_like(x[:1])
        x = jnp.concatenate([x, self.class_token[...][None].astype(x.dtype), blank, blank])[fields["source"]]
        first = (fields["source"] == shape.patches + CLASS)[:, None]
        x = x + jnp.where(first, 0, self.tiles(fields["tile"])).astype(x.dtype)
        share = 1 - self.tile_positions.factor
        position = fields["position"]
        x = x + (share * self.positions[...][position]).astype(x.dtype)
        x = x + self.tile_positions(fields["tile"] * self.tokens + position).astype(x.dtype)
        return jnp.where((fields["source"] == shape.patches + NOTHING)[:, None], 0, self.pre_norm(x))


class GatedTable(nnx.Module):
    """Rows [count, D] of a table, times the tanh of a learned number."""

    def __init__(self, name: str, width: int, get: Callable[[str], Any], gate: str = "") -> None:
        self.width = width
        self.table = nnx.Param(get(name))
        self.gate = nnx.Param(get(gate or f"{name}_gate"))

    @property
    def factor(self) -> Array:
        return jnp.tanh(self.gate[...])

    def __call__(self, rows: Array) -> Array:
        return self.factor * self.table[...].reshape(-1, self.width)[rows]


def _batch(lengths: Array, tokens: int, most: int) -> StepBatch:
    """Of pictures with `lengths` [2S] of own tokens and of padding, which have a row each, on the same pages."""
    own, padding = lengths[::2], lengths[1::2]
    whole = segment_batch(own + padding, tokens, most)
    here = jnp.append(own, 0)[whole.row]
    pads = whole.position >= here
    return replace(
        whole,
        row=2 * whole.row + (pads & (whole.row < len(own))),
        tables=jnp.repeat(whole.tables, 2, axis=0),
        noncausal_length=jnp.where(pads, here, whole.kv_length),
    )
