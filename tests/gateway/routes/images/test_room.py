"""Images that are larger than the engine takes."""

import pytest

from gateway.images.processor import ImageProcessor
from gateway.images.room import Room
from tests.gateway.fixtures import serve
from tests.gateway.images.models import directory
from tests.gateway.seeing import data_url, png

CHAT = "/v1/chat/completions"
SIZE = (400, 300)  # width, height


def asking(detail: str = "auto") -> dict[str, object]:
    part = {"type": "image_url", "image_url": {"url": data_url(png(*SIZE)), "detail": detail}}
    return {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}


@pytest.mark.parametrize("name", ["qwen2_5_vl", "pixtral", "idefics3"])
async def test_they_are_made_smaller(name: str) -> None:
    async with serve(sees=name, max_image_patches=40, max_total_tokens=512) as app:
        answer = await app.post(CHAT, asking())
        assert answer.status_code == 200, answer.text
        [image] = app.engine.requests[0].images
        plan = ImageProcessor.open(directory(name), Room(patches=40, tokens=40)).plan(*SIZE)
        assert tuple((tile.rows, tile.columns) for tile in image.tiles) == plan.shape.tiles
        assert (image.width, image.height) == SIZE


async def test_high_detail_that_does_not_fit_is_a_400_with_the_limit() -> None:
    async with serve(sees="idefics3", max_image_patches=40, max_total_tokens=512) as app:
        answer = await app.post(CHAT, asking("high"))
        assert answer.status_code == 400
        assert "images have 80 patches, at most 40 are read" in answer.json()["error"]["message"]


async def test_a_model_whose_images_cannot_be_smaller_reads_text_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(sees="llava_next", max_image_patches=19, max_total_tokens=512) as app:
        assert "an image has 20 patches and 24 tokens, more than the 19 and 19 that the engine takes" in caplog.text
        assert (await app.post(CHAT, asking())).status_code == 400
        assert (await app.post(CHAT, messages=[{"role": "user", "content": "What?"}])).status_code == 200
