"""The decoder: embedding, layers, final norm. One class for every family; `ModelSpec` is the switch.

Layers are unrolled, each a call of one inner `jit`, so that tracing costs one layer of each kind: `lax.scan` over
stacked weights would copy every layer's weights each step on a GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.cache import LayerCaches
from jaxengine.model.embedding import Embedding
from jaxengine.model.image_rows import Images, PictureCaches
from jaxengine.model.layer import Layer, ResidualStream
from jaxengine.model.layer_inputs import LayerInputs
from jaxengine.model.norm import Norm
from jaxengine.model.relative import by_distance
from jaxengine.model.rope import rope_tables_of
from jaxengine.model.state_space import StateSpaceLayer
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch
from jaxengine.ops.batch import Wanted
from jaxengine.ops.scan import state_scan

Layers = tuple[Array, ...]  # caches of all layers, see `model/cache.py`; and features, see `FeatureDecoder`


@jax.jit
def run_layer(
    layer: Layer | StateSpaceLayer,
    stream: ResidualStream,
    keys: Any,
    values: Any,
    rope_tables: RopeTables | None,
    bias: AttentionBias,
    batch: StepBatch,
    *own_input: Array,
) -> tuple[ResidualStream, Any, Any]:
    """One layer under its own jit, so that identical layers are traced and lowered once."""
    return layer(stream, keys, values, rope_tables, bias, batch, *own_input)


@jax.jit
def run_blind(layer: Layer, stream: ResidualStream, batch: StepBatch) -> ResidualStream:
    """A layer that attends to pictures where there are none, likewise."""
    return layer.blind(stream, batch)


class Decoder(nnx.Module):
    """Token ids to hidden states; writes keys and values to the pages.

    Args:
        spec: the model.
        parameters: by the names of `parameter_table`: `Weight`s and, for vectors, arrays. Shapes will do instead.
        device: its traits decide where the rope tables are computed.
        ops: the kernels, on this mesh.
        groups: if not those of the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        parameters: dict[str, Any],
        device: DeviceTraits,
        ops: Ops,
        groups: LayerGroups | None = None,
    ) -> None:
        scan = state_scan(ops.backend, ops.mesh)

        def layer(i: int) -> Layer | StateSpaceLayer:
            def get(name: str) -> Any:
                return parameters.get(f"layers.{i}.{name}")

            if spec.state_space:
                return StateSpaceLayer(spec, get, scan)
            return Layer(spec.sized(spec.kind(i)), spec.kind(i), get, ops)

        self.spec = spec
        self.device = device
        self.ops = ops
        self.groups = groups or LayerGroups.of(spec)
        self.in_parts = len(spec.heads) > 1  # the caches then have the shape of no layer, or not of all
        self.cross, self.recurrent = spec.cross_layers, spec.recurrent_layers
        self.embedding = Embedding(spec, parameters.get)
        self.inputs = LayerInputs(spec, parameters.get) if spec.embedding.layer_width else None
        self.relative = nnx.List(nnx.Param(parameters[name]) for name in _relative(spec))
        self.layers = nnx.List(layer(i) for i in range(spec.num_layers))
        self.final_norm = Norm.named("final_norm", spec.norm, parameters.get) if spec.final_norm else None

    def __call__(
        self,
        ids: Array,
        layers: Layers,
        batches: Sequence[StepBatch],
        images: Images | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[Array, Layers]:
        """ids [T] → normalised hidden states [T, hidden], at least of the tokens `wanted`, and the caches with all
        tokens written.

        There is a batch for each page table of a sequence, and one of slots where layers keep states; a layer uses the
        batch of its group. If there are more layers than the caches have, as an encoder may, layer i is layer i modulo
        that number in them. Without pictures the layers that attend to them do nothing, or go through their MLPs alone.
        """
        hidden, layers, _ = self.tapped(ids, layers, batches, (), images, wanted)
        return hidden, layers

    def tapped(
        self,
        ids: Array,
        layers: Layers,
        batches: Sequence[StepBatch],
        taps: Sequence[int],
        images: Images | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[Array, Layers, list[Array]]:
        """The same, and the residual streams [T, hidden] in front of the layers `taps`, of which the last may be one
        more than there are.
        """
        batch = batches[0]
        stream = ResidualStream(self.embedding(ids, batch.position, images))  # [T, hidden]
        dtype = stream.x.dtype
        own_inputs = None if self.inputs is None else self.inputs(ids, stream.x)  # [T, layers, width]
        ropes = dict.fromkeys((kind.rope, kind.head_dim or self.spec.head_dim) for kind in self.spec.kinds)
        rope_tables = {each: rope_tables_of(*each, batch, self.device) for each in ropes}
        biases, caches = self._biases(), LayerCaches(layers, len(self.spec.kept))
        tapped = []
        for i, layer in enumerate(self.layers):
            if i in taps:
                tapped.append(stream.sum().astype(dtype))
            if i in self.cross:
                if isinstance(images, PictureCaches):
                    seen = images.batch.of_layer(self.cross.index(i))
                    stream, _, _ = run_layer(layer, stream, *images.caches, None, AttentionBias(), seen)
                else:
                    assert isinstance(layer, Layer)
                    stream = run_blind(layer, stream, batch)
                continue
            keys, values, own = self._held(i, caches, batches)
            if i == len(self.layers) - 1:
                own = replace(own, wanted=wanted)
            kind, bias = self.spec.kind(i), biases[i % len(biases)]
            rope = rope_tables[kind.rope, kind.head_dim or self.spec.head_dim]
            further = () if own_inputs is None else (own_inputs[:, i],)
            stream, keys, values = run_layer(layer, stream, keys, values, rope, bias, own, *further)
            self._replace(i, caches, keys, values)
            if images is not None:
                stream = stream._replace(x=images.behind(i, stream.x))
        x, branch = stream.x.astype(dtype), stream.branch  # the residual stream may have a wider dtype than the weights
        if len(self.layers) in taps:
            tapped.append(ResidualStream(x, branch).sum())
        if self.final_norm is None:
            return ResidualStream(x, branch).sum(), tuple(caches.arrays), tapped
        return self.final_norm.after(x, branch, self.ops)[1], tuple(caches.arrays), tapped

    def _held(self, i: int, caches: LayerCaches, batches: Sequence[StepBatch]) -> tuple[Any, Any, StepBatch]:
        """What layer `i` reads and writes in the place of keys and in that of values, and its batch: keys and values;
        or what is kept with states, and nothing; or both of the first as one, and what is kept; or nothing at all.
        """
        kind = self.spec.kind(i)
        slots = batches[-1].of_layer(self.recurrent.index(i)) if kind.recurrent else None
        if not kind.attends:
            return (caches.kept, (), slots) if slots is not None else ((), (), batches[0].of_layer(0))
        (table, place), (part, _) = self.groups.layers[i], self.groups.parts[i]
        keys, values, number = caches.of_layer(place)
        paged = batches[table].of_layer(number, part if self.in_parts else None)
        return (keys, values, paged) if slots is None else ((keys, values), caches.kept, replace(paged, slots=slots))

    def _replace(self, i: int, caches: LayerCaches, keys: Any, values: Any) -> None:
        """Put there what layer `i` has written."""
        kind = self.spec.kind(i)
        if kind.mixer == "both":
            (keys, values), kept = keys, values
            caches.replace_kept(kept)
        if kind.attends:
            caches.replace(self.groups.layers[i][1], keys, values)
        elif kind.recurrent:
            caches.replace_kept(keys)

    def _biases(self) -> list[AttentionBias]:
        """The biases of the layers' scores: one for all layers, or one for each."""
        attention, heads = self.spec.attention, (self.spec.num_kv_heads, self.spec.group)
        slopes = jnp.asarray(np.asarray(attention.alibi, np.float32).reshape(heads)) if attention.alibi else None
        if attention.relative is None:
            return [AttentionBias(slopes)]
        return [AttentionBias(slopes, relative=by_distance(attention.relative, rows[...])) for rows in self.relative]


def _relative(spec: ModelSpec) -> list[str]:
    """Names of the parameters with relative positions: one for all layers, or one for each."""
    if spec.attention.relative is None:
        return []
    by_layer = spec.attention.relative.by_layer
    return [f"layers.{i}.relative" for i in range(spec.num_layers)] if by_layer else ["relative"]
