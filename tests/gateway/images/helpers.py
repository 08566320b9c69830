"""A helper process with the processor of `toy_helper`, and what is left of one."""

import gc
import io
import os
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gateway.images.header import PictureHeader, read_header
from gateway.images.helper import PictureHelper
from tests.gateway.images.hostile_pictures import noise, saved

MAX_PIXELS = 1 << 24


@asynccontextmanager
async def toy_helper() -> AsyncIterator[PictureHelper]:
    helper = PictureHelper(Path("/"), program="tests.gateway.images.toy_helper")
    try:
        yield helper
    finally:
        await helper.close()


async def pixels(helper: PictureHelper, data: bytes, header: PictureHeader | None = None) -> np.ndarray:
    """u8 [height, width, 3]"""
    header = header or read_header(data, MAX_PIXELS)
    found = await helper.patches(data, header, (header.height, 3 * header.width))
    return found.astype(np.uint8).reshape(header.height, header.width, 3)


def of_width(width: int) -> bytes:
    """A picture that has the toy processor do what it does at this width."""
    return saved(noise(width, 16), "PNG")


def pillows_pixels(data: bytes) -> np.ndarray:
    """u8 [height, width, 3] of the first frame, as transformers' `load_image` has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def helper_pid(helper: PictureHelper) -> int:
    assert helper._life is not None
    return helper._life._process.pid


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    gc.collect()  # those of earlier tests
    before = _descriptors()
    yield
    assert _descriptors() == before


def _descriptors() -> dict[str, str]:
    """What each leads to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of this listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found
