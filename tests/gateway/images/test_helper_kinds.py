"""In a process that may open nothing, every kind of processor answers what it answers elsewhere."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway.images.header import read_header
from gateway.images.helper import PictureHelper
from gateway.images.plan import Detail
from gateway.images.processor import ImageProcessor
from tests.gateway.images.helpers import MAX_PIXELS
from tests.gateway.images.hostile_pictures import exif, noise, saved
from tests.gateway.images.models import directory
from tests.tiny_vision import SEEN

pytestmark = pytest.mark.slow  # 6 s each

FILES = (
    saved(noise(97, 61, "P"), "GIF"),
    saved(noise(61, 200), "JPEG", exif=exif(6)),
    saved(noise(300, 40, "RGBA"), "PNG"),
    saved(noise(500, 700), "WEBP"),
    saved(noise(1100, 900, "CMYK"), "TIFF", compression="tiff_lzw"),
)
DETAILS: tuple[Detail, ...] = ("low", "high")


@pytest.mark.parametrize("name", SEEN)
async def test_patches_are_those_of_a_plain_process(name: str) -> None:
    path = Path(directory(name))
    processor = ImageProcessor.open(path)
    processor.load()
    helper = PictureHelper(path)
    for file in FILES:
        header = read_header(file, MAX_PIXELS)
        for detail in DETAILS:
            plan = processor.plan(header.width, header.height, detail)
            expected = processor.patches(Image.open(io.BytesIO(file)), plan)
            found = await helper.patches(file, header, expected.shape, plan.detail)
            assert np.array_equal(found, expected)
    await helper.close()
