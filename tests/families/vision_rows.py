"""The encoder of pictures by itself: patches in, rows out, in f32 on some devices."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from convert.source import open_model
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.architecture.picture import rows_of
from jaxengine.device import DeviceTraits
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.packing import EncodeShape, needed, pack_pictures
from jaxengine.ops import Ops
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from tests.vision_references import Seen

TOLERANCE = 1e-4  # of rows beside transformers'


class Encoded:
    """The encoder of `source`, or of the checkpoint in a directory.

    Args:
        quantize: as of the engine.
        attention: the back end.
    """

    def __init__(
        self,
        source: Path | ParameterSource,
        devices: int = 1,
        quantize: str | None = None,
        attention: str = "reference",
    ) -> None:
        self.source = open_model(str(source)).source if isinstance(source, Path) else source
        assert self.source.spec.vision is not None
        self.vision = self.source.spec.vision
        mesh, device = make_mesh(devices), DeviceTraits.of(jax.devices()[0])
        self.parameters = load_parameters(self.source, mesh, "float32", device, lambda done, total: None, quantize)
        arguments = (self.source.spec, self.parameters, device, Ops(attention, mesh))
        self.encoder = VisionEncoder(*arguments)

    def rows(self, pictures: list[Seen], shape: EncodeShape | None = None) -> list[np.ndarray]:
        """The rows of each picture, all encoded in one call of `shape`; None = the least that holds them."""
        shapes = [picture.shape for picture in pictures]
        shape = shape or needed(self.vision, shapes)
        patches = np.full((shape.patches, self.vision.patch_values), np.nan, np.float32)
        own = np.concatenate([picture.patches for picture in pictures])
        patches[: len(own)] = own
        call: Any = jax.jit(lambda patches, fields: self.encoder(shape, patches, fields))
        rows = np.asarray(call(patches, pack_pictures(self.vision, shape, shapes)))
        ends = np.cumsum([self.vision.places * rows_of(self.vision, each) for each in shapes])
        return np.split(rows, ends)[: len(shapes)]
