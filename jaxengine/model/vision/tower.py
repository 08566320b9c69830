"""The tower: patches → features, by layers of the decoder's kind over segments in place of sequences.

Legend: P patches, T tokens (patches, and a class token for each segment), D the tower's width.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.decoder import run_layer
from jaxengine.model.layer import Layer, ResidualStream
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.model.rope import rope_tables_of
from jaxengine.model.vision.packing import EncodeShape, tower_tokens
from jaxengine.model.vision.segments import longest_segment, scratch, segment_batch
from jaxengine.ops import AttentionBias, Ops, StepBatch

Fields = dict[str, Array]


class Tower(nnx.Module):
    """patches [P, patch_values] → features [T, feature_size]; `get` finds parameters by names without "vision."."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], device: DeviceTraits, ops: Ops) -> None:
        assert spec.vision is not None
        tower = spec.vision.tower
        self.vision = spec.vision
        self.layer_spec = spec.tower_spec
        self.device = device
        self.embedding = TowerEmbedding(spec, get)
        self.layers = nnx.List(
            Layer(self.layer_spec, self.layer_spec.kind(i), partial(_of_layer, get, i), ops.for_heads(tower.num_heads))
            for i in range(tower.num_layers)
        )
        self.post_norm = Norm.named("post_norm", tower.norm, get) if tower.post_norm else None

    def __call__(self, shape: EncodeShape, patches: Array, fields: Fields) -> Array:
        features, _ = self.tapped(shape, patches, fields)
        return features

    def tapped(self, shape: EncodeShape, patches: Array, fields: Fields) -> tuple[Array, list[Array]]:
        """The features, and what each of the deepstack layers has made [T, D]."""
        stream = ResidualStream(self.embedding(patches, fields))
        whole, windows = self._batches(shape, fields)
        rope_tables = rope_tables_of(self.layer_spec.kinds[0].rope, self.layer_spec.head_dim, whole, self.device)
        keys, values = scratch(self.layer_spec, [whole, windows], stream.x.dtype, self.device)
        taps = {*self.vision.features, *(layer + 1 for layer in self.vision.deepstack_layers)}
        tapped = {0: stream.sum()} if 0 in taps else {}
        for i, layer in enumerate(self.layers, 1):
            batch = whole if i - 1 in self.vision.tower.whole_layers else windows
            stream, keys, values = run_layer(layer, stream, keys, values, rope_tables, AttentionBias(), batch)
            if i in taps:
                tapped[i] = stream.sum()
        deepstack = [tapped[layer + 1] for layer in self.vision.deepstack_layers]
        if self.vision.features:
            return jnp.concatenate([tapped[i] for i in self.vision.features], axis=-1), deepstack
        x = stream.sum()
        return x if self.post_norm is None else self.post_norm(x), deepstack

    def _batches(self, shape: EncodeShape, fields: Fields) -> tuple[StepBatch, StepBatch]:
        """In which tiles are segments, and in which windows are; the same where there are none."""
        tokens = tower_tokens(self.vision, shape)
        whole = segment_batch(fields["lengths"], tokens, longest_segment(self.vision, shape))
        if "place" in fields:
            place = jnp.concatenate([jnp.zeros((1, tokens), jnp.int32), fields["place"]])  # time, row, column
            whole = replace(whole, rope_position=place)
        if "windows" not in fields:
            return whole, whole
        return whole, segment_batch(fields["windows"], tokens, self.vision.tower.window**2)


class TowerEmbedding(nnx.Module):
    """patches [P, patch_values] → [T, D]: embedded, class tokens put in, positions added, normalised."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any]) -> None:
        assert spec.vision is not None
        tower = spec.vision.tower
        self.patch = Linear.named("patch", get)
        self.class_token = nnx.Param(get("class_token")) if tower.class_token else None
        self.positions = nnx.Param(get("positions")) if tower.positions != "none" else None
        self.pre_norm = Norm.named("pre_norm", tower.norm, get) if tower.pre_norm else None

    def __call__(self, patches: Array, fields: Fields) -> Array:
        x = self.patch(patches.astype(self.patch.weight.get_value().values.dtype))
        if self.class_token is not None:
            x = jnp.concatenate([x, self.class_token[...][None]])
        if "source" in fields:
            x = x[fields["source"]]
        if self.positions is not None:
            x = x + self._positions(self.positions[...], fields).astype(x.dtype)
        return x if self.pre_norm is None else self.pre_norm(x)

    def _positions(self, table: Array, fields: Fields) -> Array:
        """What of the table of positions is added to each token, [T, D]."""
        rows = table[fields["position"]]
        if "weight" not in fields:
            return rows
        weights = jax.lax.bitcast_convert_type(fields["weight"], jnp.float32)  # [4, T]
        return jnp.einsum("nt,ntd->td", weights, rows.astype(jnp.float32), precision="highest")


def _of_layer(get: Callable[[str], Any], i: int, name: str) -> Any:
    return get(f"layers.{i}.{name}")
