"""Where a prompt's tokens stand for a rope with axes: as transformers' `get_rope_index` has it."""

from typing import Any

import numpy as np
import pytest
import torch

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.rope_positions import rope_positions
from jaxengine.architecture.switches import Norm
from jaxengine.architecture.vision import Connector, Tower, Vision
from tests.tiny_vision import IMAGE, build

TOWER = Tower(32, 1, 2, 16, 48, Norm(), positions="none")
VISION = Vision(TOWER, Connector(merge=2), IMAGE, 14, 1176)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_prompts_of_text_and_pictures_are_placed_as_by_transformers(name: str) -> None:
    model, random = build(name).model, np.random.default_rng(0)
    for _ in range(200):
        types, pictures = random_prompt(random)
        expected, shift = positions_of_transformers(model, types, pictures)
        ours = rope_positions(VISION, len(types), pictures)
        np.testing.assert_array_equal(ours.position, expected)
        assert ours.shift == shift


def random_prompt(random: np.random.Generator) -> tuple[list[int], list[tuple[int, PictureShape]]]:
    """Of each token whether a picture's, and the pictures, with text around each."""
    types, pictures = [0] * int(random.integers(1, 9)), []
    for _ in range(int(random.integers(0, 4))):
        rows, columns = random.integers(1, 9, 2).tolist()
        pictures.append((len(types), PictureShape(((2 * rows, 2 * columns),), 1, 1)))
        types += [1] * (rows * columns) + [0] * int(random.integers(1, 9))
    return types if random.random() < 0.8 or not pictures else types[: pictures[-1][0] + rows * columns], pictures


def positions_of_transformers(
    model: Any, types: list[int], pictures: list[tuple[int, PictureShape]]
) -> tuple[np.ndarray, int]:
    ids = torch.tensor([[IMAGE if each else 5 for each in types]])
    grids = torch.tensor([[1, *shape.tiles[0]] for _, shape in pictures]) if pictures else None
    position, shift = model.get_rope_index(ids, mm_token_type_ids=torch.tensor([types]), image_grid_thw=grids)
    return position[:, 0].numpy(), int(shift)


def test_pictures_that_overlap_are_refused() -> None:
    shape = PictureShape(((4, 4),), 56, 56)
    with pytest.raises(ValueError, match="end at token 6 must end by token 5"):
        rope_positions(VISION, 20, [(2, shape), (5, shape)])
    with pytest.raises(ValueError, match="end at token 20 must end by token 19"):
        rope_positions(VISION, 19, [(16, shape)])
