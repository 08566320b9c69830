"""Every kind of processor beside transformers': tiles, rows and ids from a size alone, and patches from pixels."""

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from tests.gateway.images.reference import patches, sides
from tests.tiny_vision import IMAGE, SEEN
from tests.vision_references import mark, noise

LARGEST = 400  # pixels on a side: as many tiles, rows and roundings as a larger one has in these small models


def sizes(name: str, number: int) -> Iterator[tuple[int, int]]:
    """Widths and heights: the corners, squares, and any others, small ones as often as large ones."""
    yield from [(1, 1), (1, 3), (3, 1), (2, 400), (400, 2), (112, 112), (56, 57)]
    generator = np.random.default_rng(list(name.encode()))
    for _ in range(number):
        width, height = np.exp(generator.uniform(0, np.log(LARGEST), 2)).astype(int).tolist()
        yield max(width, -(-height // 200)), max(height, -(-width // 200))


def check(name: str, picture: Image.Image) -> None:
    ours = sides(name)
    try:
        plan = ours.processor.plan(*picture.size)
    except ValueError:
        if name == "idefics2" and min(picture.size) == 1:
            return  # quarters without pixels, of which transformers makes black ones
        with pytest.raises((ValueError, ZeroDivisionError)):  # transformers does no better
            patches(name, picture, ours.processor.kind.patch)
        return
    grids, expected = patches(name, picture, ours.processor.kind.patch)
    assert plan == ours.processor.plan(*picture.size, plan.detail)  # as the helper asks again
    assert list(plan.shape.tiles) == grids
    np.testing.assert_array_equal(ours.processor.patches(picture, plan), expected)
    text = f"user: What is in {mark(name)}the picture?"
    prompt = ours.writer.encode(text, [plan], add_special_tokens=True)
    assert prompt.ids == ours.ids(text, [picture])
    assert prompt.ids.count(IMAGE) == plan.rows


@pytest.mark.parametrize("name", SEEN)
def test_tiles_rows_ids_and_patches_are_transformers(name: str) -> None:
    for width, height in sizes(name, 3):
        check(name, noise(width, height))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_tiles_rows_ids_and_patches_are_transformers_at_every_size(name: str) -> None:
    for width, height in sizes(name, 200):
        check(name, noise(width, height))
