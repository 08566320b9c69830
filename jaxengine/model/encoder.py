"""The encoder of an encoder-decoder model: it reads a prompt once and writes keys and values of its output to pages.

Its layers are like the decoder's, except that every token sees the whole prompt. So the encoder is a `Decoder` run on a
batch with `noncausal_length`. While it runs, its own keys and values use the prompt's pages in the caches of the
decoder's layers; at the end they are overwritten with the keys and values that those layers read. So encoding takes no
memory beyond an ordinary step's.
"""

from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.cache import LayerCaches
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.linear import Linear
from jaxengine.ops import Ops, StepBatch
from jaxengine.ops.cache import write

PREFIX = "encoder."


class Encoder(nnx.Module):
    """From prompts to the keys and values that the decoder's layers attend to. Arguments as for `Decoder`."""

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops) -> None:
        own = {name.removeprefix(PREFIX): array for name, array in parameters.items() if name.startswith(PREFIX)}
        self.stack = Decoder(spec.encoder_spec, {**own, "embedding": parameters["embedding"]}, device, ops)
        self.cross = nnx.List(Linear.named(f"layers.{i}.cross_kv", parameters.get) for i in range(spec.num_layers))

    def __call__(self, ids: Array, layers: Layers, batch: StepBatch) -> Layers:
        """ids [T] of whole prompts → the decoder's caches with their keys and values written."""
        hidden, layers = self.stack(ids, layers, [batch])
        caches = LayerCaches(layers)
        for i, cross in enumerate(self.cross):
            keys, values, number = caches.of_layer(i)
            kv, of_layer = cross(hidden, adapters=batch.adapters), batch.of_layer(number)  # [T, 2, K, D]
            caches.replace(i, write(keys, kv[:, 0], of_layer), write(values, kv[:, 1], of_layer))
        return tuple(caches.arrays)
