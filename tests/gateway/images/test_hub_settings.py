"""Ids of pictures as large as people send them, with the settings of models that people use.

transformers is asked with pictures of nothing but zeros, and resizes none: all that it counts follows from sizes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_processing_backends import PilBackend

from tests.gateway.images.hub import HUB, hub_directory
from tests.gateway.images.reference import Sides
from tests.vision_references import mark

STEPS = {"do_rescale": False, "do_normalize": False, "do_convert_rgb": False, "input_data_format": "channels_first"}


@pytest.fixture(autouse=True)
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(self: Any, image: np.ndarray, size: Any, **_: Any) -> np.ndarray:
        edge = size.shortest_edge
        return _zeros(edge, edge) if edge else _zeros(size.height, size.width)

    monkeypatch.setattr(PilBackend, "resize", resize)


def _zeros(height: int, width: int) -> np.ndarray:
    return np.broadcast_to(np.uint8(0), (3, height, width))


def check(name: str, target: Path, number: int) -> None:
    recipe = HUB[name][0]
    both = Sides.of(hub_directory(name, target), recipe)
    text = f"user: {mark(recipe)}What?"
    generator = np.random.default_rng(list(name.encode()))
    for _ in range(number):
        width, height = np.exp(generator.uniform(np.log(25), np.log(5000), 2)).astype(int).tolist()
        picture = (
            Image.new("L", (width, height)) if recipe == "idefics2" else _zeros(height, width)
        )  # it takes no arrays
        found = both.reference(text=[text], images=[[picture]], images_kwargs=STEPS)
        plan = both.processor.plan(width, height)
        assert both.writer.encode(text, [plan], add_special_tokens=True).ids == list(found["input_ids"][0]), plan


@pytest.mark.parametrize("name", HUB)
def test_ids_are_transformers(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", HUB)
def test_ids_are_transformers_at_any_size(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 200)
