"""The encoder of pictures that layers of the text model attend to: patches → their keys and values in these layers.

Legend: P patches, R tiles, N tokens of a tile, K key/value heads, D head dimension.
"""

from functools import partial
from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.architecture.vision_parameters import VISION
from jaxengine.device import DeviceTraits
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.model.vision.connector import Connector
from jaxengine.model.vision.packing import EncodeShape, unpack
from jaxengine.model.vision.tiled_tower import TiledTower
from jaxengine.ops import Ops


class PictureReader(nnx.Module):
    """Arguments as for `VisionEncoder`; of the text layers it uses the matrices that make keys and values."""

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops) -> None:
        assert spec.vision is not None

        def get(name: str) -> Any:
            return parameters.get(f"{VISION}{name}")

        def of_layer(i: int, name: str) -> Any:
            return parameters.get(f"layers.{i}.{name}")

        norm = NormSpec("rms", spec.norm.eps)
        self.vision = spec.vision
        self.tower = TiledTower(spec, get, device, ops)
        self.connector = Connector(spec.vision, get)
        self.cross = nnx.List(Linear.named("cross_kv", partial(of_layer, i)) for i in spec.cross_layers)
        self.norms = nnx.List(Norm.named("cross_k_norm", norm, partial(of_layer, i)) for i in spec.cross_layers)

    def rows(self, shape: EncodeShape, patches: Array, fields: Array) -> Array:
        """patches [P, patch_values] and `pack_pictures`' fields → [R · N, hidden], of the weights' dtype."""
        unpacked = unpack(self.vision, shape, fields)
        return self.connector(self.tower(shape, patches, unpacked), unpacked["merge"])

    def __call__(self, shape: EncodeShape, patches: Array, fields: Array) -> list[tuple[Array, Array]]:
        """The same → keys and values [R · N, K, D] for each of the layers."""
        rows = self.rows(shape, patches, fields)
        made = []
        for cross, norm in zip(self.cross, self.norms, strict=True):
            kv = cross(rows)  # [R · N, 2, K, D]
            made.append((norm(kv[:, 0]), kv[:, 1]))
        return made
