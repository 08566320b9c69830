"""What stands in for pictures: rows of the encoder equal transformers' image features, for every way to see."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from convert.compose import compose
from convert.formats.shards import open_tensors
from convert.source import configuration
from jaxengine.architecture.picture import check_picture, rows_of
from jaxengine.device import DeviceTraits
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.packing import EncodeShape, encode_shapes, needed, pack_pictures
from jaxengine.ops import Ops
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from tests.tiny_vision import SEEN, write_vision
from tests.vision_references import Reference, Seen, noise

SIZES = ((64, 40), (40, 64), (150, 31))
TOLERANCE = 1e-4


class Encoded:
    """The encoder of the checkpoint in `directory`, in f32 on one device."""

    def __init__(self, directory: Path, devices: int = 1) -> None:
        self.source = compose(configuration(directory), open_tensors(directory))
        assert self.source.spec.vision is not None
        self.vision = self.source.spec.vision
        mesh, device = make_mesh(devices), DeviceTraits.of(jax.devices()[0])
        parameters = load_parameters(self.source, mesh, "float32", device, lambda done, total: None)
        self.encoder = VisionEncoder(self.source.spec, parameters, device, Ops("reference", mesh))

    def rows(self, pictures: list[Seen], shape: EncodeShape | None = None) -> list[np.ndarray]:
        """The rows of each picture, all encoded in one call of `shape`; None = the least that holds them."""
        shapes = [picture.shape for picture in pictures]
        shape = shape or needed(self.vision, shapes)
        patches = np.full((shape.patches, self.vision.patch_values), np.nan, np.float32)
        own = np.concatenate([picture.patches for picture in pictures])
        patches[: len(own)] = own
        call: Any = jax.jit(lambda patches, fields: self.encoder(shape, patches, fields))
        rows = np.asarray(call(patches, pack_pictures(self.vision, shape, shapes)))
        ends = np.cumsum([rows_of(self.vision, each) for each in shapes])
        return np.split(rows, ends)[: len(shapes)]


@pytest.fixture(scope="module", params=SEEN)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Encoded]:
    directory = write_vision(tmp_path_factory.mktemp("vision"), request.param)
    return Reference(directory, request.param), Encoded(directory)


def test_rows_are_those_of_transformers(model: tuple[Reference, Encoded]) -> None:
    reference, encoded = model
    for width, height in SIZES:
        picture = noise(width, height)
        seen = reference.see(picture)
        check_picture(encoded.vision, seen.shape)
        (rows,) = encoded.rows([seen])
        expected = reference.rows(picture)
        assert rows.shape == expected.shape
        np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)


def test_pictures_of_one_call_do_not_see_each_other_nor_the_padding(model: tuple[Reference, Encoded]) -> None:
    reference, encoded = model
    pictures = [reference.see(noise(width, height)) for width, height in SIZES]
    need = needed(encoded.vision, [picture.shape for picture in pictures])
    roomy = encode_shapes(encoded.vision, EncodeShape(2 * need.patches, 2 * need.segments, 2 * need.rows))[-1]
    together = encoded.rows(pictures, roomy)
    for picture, rows in zip(pictures, together, strict=True):
        np.testing.assert_allclose(rows, encoded.rows([picture])[0], atol=TOLERANCE, rtol=0)
