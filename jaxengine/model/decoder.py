"""The decoder: embedding, layers, final norm. One class for every decoder-only family; `ModelSpec` is the switch.

Layers are unrolled, each a call of one inner `jit`, so that tracing costs one layer of each kind: `lax.scan` over
stacked weights would copy every layer's weights each step on a GPU.
"""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax import Array

from jaxengine.model.attention import Angles, Attend
from jaxengine.model.embedding import Embedding
from jaxengine.model.layer import Layer
from jaxengine.model.norm import Norm
from jaxengine.model.rope import angles
from jaxengine.model.spec import ModelSpec
from jaxengine.model.switches import Rope
from jaxengine.ops import AttentionBatch

Layers = Sequence[tuple[Array, Array]]  # each layer's (keys, values): [pages, page_size, K, D]


@jax.jit
def run_layer(
    layer: Layer, x: Array, keys: Array, values: Array, angles: Angles | None, batch: AttentionBatch
) -> tuple[Array, Array, Array]:
    """One layer under a jit of its own: identical layers are traced and lowered once."""
    return layer(x, keys, values, angles, batch)


class Decoder(nnx.Module):
    """Token ids to hidden states, writing keys and values into pages on the way.

    Args:
        spec: the model.
        parameters: arrays (or their abstract shapes) by the names of `parameter_table`, in device layout.
        platform: "cpu", "cuda", …; decides the layout of matrices.
        attend: paged attention on this mesh, for the layers that its argument describes.
    """

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], platform: str, attend: Attend) -> None:
        def layer(i: int) -> Layer:
            return Layer(spec, spec.kind(i), lambda name: parameters.get(f"layers.{i}.{name}"), platform, attend)

        self.spec = spec
        self.embedding = Embedding(spec, parameters.get, platform)
        self.layers = nnx.List(layer(i) for i in range(spec.num_layers))
        self.final_norm = Norm.named("final_norm", spec.norm, parameters.get) if spec.final_norm else None

    def __call__(self, ids: Array, layers: Layers, batch: AttentionBatch) -> tuple[Array, Layers]:
        """ids [T] → normalised hidden states [T, hidden], and the caches with these tokens written."""
        x = self.embedding(ids, batch.position)  # [T, hidden]
        turns = {kind.rope: self._angles(kind.rope, batch) for kind in self.spec.kinds}
        written = []
        for i, (layer, (keys, values)) in enumerate(zip(self.layers, layers, strict=True)):
            x, keys, values = run_layer(layer, x, keys, values, turns[self.spec.kind(i).rope], batch)
            written.append((keys, values))
        return x if self.final_norm is None else self.final_norm(x), written

    def _angles(self, rope: Rope | None, batch: AttentionBatch) -> Angles | None:
        return None if rope is None else angles(rope, self.spec.head_dim, batch.position, batch.prompt_length)
