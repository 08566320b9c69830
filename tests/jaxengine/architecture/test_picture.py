"""How many rows a picture has, which of its patches they are, and which shapes no picture can have."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

from jaxengine.architecture.model import Norm, Vision
from jaxengine.architecture.picture import PictureShape, check_picture, rows_of, tiling, unpadded
from jaxengine.architecture.vision import Connector, Tower
from jaxengine.model.vision.packing import EncodeShape, encode_shapes, needed, pack_pictures
from tests.shapes import LLAVA_NEXT_7B

LLAVA_NEXT = LLAVA_NEXT_7B.vision
assert LLAVA_NEXT is not None
TILE = (24, 24)
ANY_SIZE = Vision(
    Tower(8, 1, 1, 8, 8, Norm(), positions="none", grid=(16, 16)),
    Connector(merge=2),
    token=0,
    patch=14,
    patch_values=588,
)
IN_SQUARES = replace(ANY_SIZE, squares=True)


def test_a_picture_without_its_padding_is_transformers_for_any_size() -> None:
    """Of a picture cut into tiles, which patches are no padding."""
    assert LLAVA_NEXT is not None
    pinpoints = [list(size) for size in LLAVA_NEXT.pinpoints]
    generator = np.random.default_rng(0)
    for width, height in np.exp(generator.uniform(3, 8, (300, 2))).astype(int).tolist():
        shape = PictureShape((TILE,), height, width)
        down, across = get_anyres_image_grid_shape((height, width), pinpoints, 336)
        assert tiling(LLAVA_NEXT, shape) == (down, across)
        grid = torch.arange(down * across * 576).reshape(1, down * 24, across * 24)
        top, bottom, left, right = unpadded(LLAVA_NEXT, shape)
        expected = unpad_image(grid, (height, width))
        np.testing.assert_array_equal(grid[:, top:bottom, left:right], expected)
        assert rows_of(LLAVA_NEXT, shape) == 576 + expected.numel() + expected.shape[1]


@pytest.mark.parametrize(
    ("vision", "shape", "said"),
    [
        (ANY_SIZE, PictureShape((), 14, 14), "needs tiles and a size"),
        (ANY_SIZE, PictureShape(((2, 2),), 0, 28), "needs tiles and a size"),
        (ANY_SIZE, PictureShape(((2, 1),), 28, 14), "at least 2 rows and columns of patches, got (2, 1)"),
        (ANY_SIZE, PictureShape(((4, 17),), 56, 238), "at most (16, 16) rows and columns of patches, got (4, 17)"),
        (IN_SQUARES, PictureShape(((4, 5),), 56, 70), "in multiples of 2, got (4, 5)"),
        (LLAVA_NEXT, PictureShape(((24, 23),), 336, 322), "must have (24, 24) rows and columns of patches"),
        (LLAVA_NEXT, PictureShape((TILE,) * 4, 672, 672), "has 5 tiles, got 4"),
    ],
)
def test_what_no_picture_can_be_is_refused(vision: Vision, shape: PictureShape, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_picture(vision, shape)


def test_the_largest_of_the_shapes_holds_what_was_asked_and_smaller_ones_are_smaller() -> None:
    assert LLAVA_NEXT is not None
    largest = needed(LLAVA_NEXT, [PictureShape((TILE,) * 5, 672, 672)] * 2)
    shapes = encode_shapes(LLAVA_NEXT, largest)
    assert [shape.segments for shape in shapes] == [1, 2, 4, 8, 10] and shapes[-1].holds(largest)
    of_any_size = encode_shapes(ANY_SIZE, EncodeShape(5000, 1, 1250))
    assert [shape.patches for shape in of_any_size] == [256, 1024, 4096, 5000] and list(of_any_size) == sorted(
        of_any_size
    )


def test_pictures_that_do_not_fit_a_call_are_refused() -> None:
    picture = PictureShape(((4, 4),), 56, 56)
    (shape,) = encode_shapes(ANY_SIZE, EncodeShape(16, 1, 4))
    pack_pictures(ANY_SIZE, shape, [picture])
    with pytest.raises(ValueError, match=r"need EncodeShape\(patches=32, .* do not fit EncodeShape\(patches=16"):
        pack_pictures(ANY_SIZE, shape, [picture, replace(picture, height=57)])
