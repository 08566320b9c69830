"""The gateway's count of a picture, beside the engine's, which is what a prompt is refused by."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from convert.families.multimodal import MODELS, eyes_of
from convert.source import configuration
from gateway.images.processor import ImageProcessor
from jaxengine.architecture.picture import check_picture, places_of
from jaxengine.architecture.vision import Vision
from tests.gateway.images.hub import HUB, hub_directory
from tests.gateway.images.models import directory
from tests.tiny_vision import SEEN
from tests.vision_references import noise


def vision_of(target: Path) -> Vision:
    config = configuration(target)
    if MODELS.get(config.text("model_type")) is None:
        pytest.skip("the engine does not see with this model")
    eyes = eyes_of(config)
    assert eyes is not None
    return eyes.family.spec(eyes.config, 64)


def sizes(number: int) -> Iterator[tuple[int, int]]:
    generator = np.random.default_rng(0)
    for _ in range(number):
        width, height = np.exp(generator.uniform(np.log(25), np.log(5000), 2)).astype(int).tolist()
        yield width, height


def check(target: Path, number: int) -> None:
    vision, processor = vision_of(target), ImageProcessor.open(target)
    assert processor.token == vision.token
    for size in sizes(number):
        for detail in ("low", "high"):
            plan = processor.plan(*size, detail)
            check_picture(vision, plan.shape)
            assert places_of(vision, plan.shape) == plan.rows


@pytest.mark.parametrize("name", SEEN)
def test_rows_of_tiny_models(name: str) -> None:
    check(directory(name), 50)
    processor = ImageProcessor.open(directory(name))
    patches = processor.patches(noise(70, 50), processor.plan(70, 50))
    assert patches.shape[1] == vision_of(directory(name)).patch_values


@pytest.mark.parametrize("name", HUB)
def test_rows_with_the_hubs_settings(name: str, tmp_path: Path) -> None:
    check(hub_directory(name, tmp_path), 200)
