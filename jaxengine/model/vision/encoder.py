"""The encoder of pictures: patches → rows that stand in for the embeddings of placeholder tokens, or of which
`picture_reader` makes keys and values.

Its layers are the decoder's, over segments in place of sequences. Where things lie, `packing` has computed.

Legend: P patches, T tokens of the tower, M rows of the connector, R rows for the text model.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.vision_parameters import VISION
from jaxengine.device import DeviceTraits
from jaxengine.model.vision.connector import Connector
from jaxengine.model.vision.packing import EncodeShape, unpack
from jaxengine.model.vision.resampler import Resampler
from jaxengine.model.vision.segments import longest_segment
from jaxengine.model.vision.tiled_tower import TiledTower
from jaxengine.model.vision.tower import Tower
from jaxengine.ops import Ops


class VisionEncoder(nnx.Module):
    """Arguments as for `Decoder`; those of `parameters` are used whose names begin with "vision."."""

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops) -> None:
        assert spec.vision is not None

        def get(name: str) -> Any:
            return parameters.get(f"{VISION}{name}")

        self.vision = spec.vision
        self.tower = (TiledTower if spec.vision.tower.tiles else Tower)(spec, get, device, ops)
        self.connector = Connector(spec.vision, get)
        deepstack = replace(spec.vision, connector=spec.vision.deepstack_connector)
        self.deepstack = nnx.List(
            Connector(deepstack, lambda name, i=i: get(name.replace("connector.", f"deepstack.{i}.")))  # type: ignore[misc]
            for i in range(spec.vision.deepstack)
        )
        self.resampler = Resampler(spec, get, device, ops) if spec.vision.resampler else None
        self.newline = nnx.Param(get("newline")) if spec.vision.rows == "unpadded" else None

    def __call__(self, shape: EncodeShape, patches: Array, fields: Array) -> Array:
        """patches [P, patch_values] and `pack_pictures`' fields → rows [R, (1 + deepstack) · hidden]; where layers
        attend to them, all those of R tiles.

        Rows are of the weights' dtype. `shape` is static. Behind the text model's rows lie those of each deepstack set.
        """
        unpacked = unpack(self.vision, shape, fields)
        features, tapped = self.tower.tapped(shape, patches, unpacked)
        rows = self.connector(features, unpacked["merge"])  # [M, hidden]
        sets = [make(x, unpacked["merge"]) for make, x in zip(self.deepstack, tapped, strict=True)]
        if sets:
            rows = jnp.concatenate([rows, *sets], axis=-1)
        if self.resampler is not None:
            made = self.resampler(rows, unpacked["lengths"], longest_segment(self.vision, shape))
            return made[: shape.rows * self.vision.places]
        if self.newline is not None:
            rows = jnp.concatenate([rows, self.newline[...][None]])[unpacked["rows"]]
        return rows
