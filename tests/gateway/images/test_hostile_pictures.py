"""Every file of `hostile_pictures` is refused, or becomes the pixels that Pillow reads; none harms another."""

import asyncio

import numpy as np
import pytest

from gateway.errors import Kind, RequestError
from gateway.images.header import read_header
from tests.gateway.images.helpers import MAX_PIXELS, helper_pid, pillows_pixels, pixels, toy_helper
from tests.gateway.images.hostile_pictures import all_files, modes, turned
from tests.processes import children

pytestmark = pytest.mark.slow  # 20 s


async def test_each_is_refused_or_has_pillows_pixels() -> None:
    files = dict(all_files())
    async with toy_helper() as helper:
        answers = await asyncio.gather(*(pixels(helper, data) for data in files.values()), return_exceptions=True)
        assert not children(helper_pid(helper))
    for (name, data), answer in zip(files.items(), answers, strict=True):
        if isinstance(answer, RequestError):
            assert answer.kind is Kind.INVALID and len(answer.message) < 200, name
        else:
            assert isinstance(answer, np.ndarray), (name, answer)
            assert np.array_equal(answer, pillows_pixels(data)), name


async def test_what_is_whole_is_not_refused() -> None:
    files = {**dict(modes()), **dict(turned())}
    async with toy_helper() as helper:
        for name, data in files.items():
            assert np.array_equal(await pixels(helper, data), pillows_pixels(data)), name


@pytest.mark.parametrize("name, data", list(turned()), ids=lambda each: each if isinstance(each, str) else "")
def test_the_size_is_that_after_the_rotation(name: str, data: bytes) -> None:
    header = read_header(data, MAX_PIXELS)
    assert (header.height, header.width) == pillows_pixels(data).shape[:2]
