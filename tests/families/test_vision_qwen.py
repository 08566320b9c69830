"""Qwen's towers on pictures of many shapes in one call: windows cut at the edges, positions stretched, deepstack."""

from pathlib import Path

import numpy as np
import pytest
import torch

from jaxengine.architecture.picture import PictureShape
from jaxengine.model.vision.packing import EncodeShape, encode_shapes, needed
from tests.families.vision_rows import TOLERANCE, Encoded
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, Seen

GRIDS = ((2, 2), (2, 12), (10, 6), (14, 18), (4, 4), (26, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_pictures_of_any_shape_have_the_rows_of_transformers(name: str, tmp_path: Path) -> None:
    directory = write_vision(tmp_path, name)
    reference, encoded = Reference(directory, name), Encoded(directory)
    random, width = np.random.default_rng(0), encoded.vision.patch_values
    pictures = [
        Seen(PictureShape((grid,), 1, 1), random.normal(size=(grid[0] * grid[1], width)).astype(np.float32))
        for grid in GRIDS
    ]
    with torch.no_grad():
        patches = torch.from_numpy(np.concatenate([picture.patches for picture in pictures]))
        found = reference.model.model.visual(patches, grid_thw=torch.tensor([[1, *grid] for grid in GRIDS]))
    expected = torch.cat([found.pooler_output, *getattr(found, "deepstack_features", [])], dim=-1).numpy()
    need = needed(encoded.vision, [picture.shape for picture in pictures])
    largest = EncodeShape(need.patches + 64, need.segments, need.rows, need.windows)
    rows = np.concatenate(encoded.rows(pictures, encode_shapes(encoded.vision, largest)[-1]))
    np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)
