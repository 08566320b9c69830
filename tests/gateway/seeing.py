"""A gateway's helper without a process, and pictures to send."""

import base64
import functools
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gateway.errors import RequestError
from gateway.images.header import PictureHeader
from gateway.images.helper import Patches, PictureHelper
from gateway.images.room import Room
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.images.models import directory
from tests.gateway.images.reference import sides
from tests.vision_references import template

IMAGE = 300  # the placeholder's id in every recipe of `tests.tiny_vision`
PATCH_VALUES = 1


def number_of(picture: Image.Image) -> float:
    """What stands for a picture's pixels."""
    return float(zlib.crc32(ImageOps.exif_transpose(picture).convert("RGB").tobytes()) % 10_000)


class ToyHelper(PictureHelper):
    """It decodes here, and all patches of a picture are its number."""

    def __init__(self, directory: Path, *, dtype: str = "float32", room: Room = Room()) -> None:
        self.decoded = 0

    def start(self) -> None:
        pass

    async def patches(
        self, data: bytes, header: PictureHeader, shape: tuple[int, int], detail: str = "high"
    ) -> Patches:
        self.decoded += 1
        try:
            with Image.open(io.BytesIO(data)) as picture:
                return np.full(shape, number_of(picture), np.float32)
        except Exception:
            raise RequestError.invalid("the image cannot be decoded") from None

    async def close(self) -> None:
        pass


@functools.cache
def picture(width: int = 64, height: int = 40, seed: int = 0) -> Image.Image:
    """Noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def png(width: int = 64, height: int = 40, seed: int = 0) -> bytes:
    file = io.BytesIO()
    picture(width, height, seed).save(file, "PNG")
    return file.getvalue()


def base64_of(file: bytes) -> str:
    return base64.b64encode(file).decode()


def data_url(file: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64_of(file)}"


def shown(request: pb.Generate) -> list[tuple[int, int, float]]:
    """The images that the engine was sent with a request: where each begins, how long it is, and its number."""
    numbers = [np.frombuffer(each.patches, "<f4") for each in request.images]
    assert all((each == each[0]).all() for each in numbers)
    return [(image.offset, image.length, float(each[0])) for image, each in zip(request.images, numbers, strict=True)]


def reference_ids(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """transformers' for a chat with a model of the recipe `name`, whose images are Pillow's."""
    found = sides(name).reference.apply_chat_template(
        messages,
        chat_template=template(directory(name)),
        tokenize=True,
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids: list[int] = found["input_ids"][0].tolist()
    return ids
