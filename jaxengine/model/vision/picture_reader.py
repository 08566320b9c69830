"""The encoder of pictures that layers of the text model attend to: patches → their keys and values in these layers.

Legend: P patches, R rows of the pool (tiles), N keys of each, K key/value heads, D head dimension.
"""

from functools import partial
from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.model import LayerKind, ModelSpec
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.ops import Ops


class PictureReader(nnx.Module):
    """Arguments as for `VisionEncoder`; of the text layers it uses the matrices that make keys and values."""

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops) -> None:
        assert spec.vision is not None
        self.vision = spec.vision
        self.rows = VisionEncoder(spec, parameters, device, ops)  # → [R · N, width]
        self.layers = nnx.List(
            KeysAndValues(spec, spec.kind(i), partial(_of_layer, parameters, i)) for i in spec.cross_layers
        )

    def __call__(self, shape: EncodeShape, patches: Array, fields: Array) -> list[tuple[Array, Array]]:
        """patches [P, patch_values] and `pack_pictures`' fields → keys and values [R · N, K, D] for each layer."""
        rows = self.rows(shape, patches, fields)
        return [layer(rows) for layer in self.layers]


class KeysAndValues(nnx.Module):
    """Rows [R · N, width] → a layer's keys and values [R · N, K, D]; `get` is the layer's."""

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Any) -> None:
        assert kind.cross is not None
        self.product = Linear.named("cross_kv", get)
        self.norm = Norm.named("cross_k_norm", NormSpec("rms", spec.norm.eps), get) if kind.cross.norm else None

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        kv = self.product(rows)  # [R · N, 2, K, D]
        keys = kv[:, 0]
        return keys if self.norm is None else self.norm(keys), kv[:, 1]


def _of_layer(parameters: dict[str, Any], i: int, name: str) -> Any:
    return parameters.get(f"layers.{i}.{name}")
