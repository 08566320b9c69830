"""What a picture's first bytes say of it: which format, how many pixels. Decides whether it is worth decoding."""

from dataclasses import dataclass
from typing import Literal

PictureFormat = Literal["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]


@dataclass(frozen=True)
class PictureHeader:
    """width, height: pixels, after the rotation that EXIF asks for."""

    format: PictureFormat
    width: int
    height: int


def read_header(data: bytes, max_pixels: int) -> PictureHeader:
    """Raises RequestError INVALID, without `param`: not a picture of these formats, too large, too small, too narrow."""
    raise NotImplementedError
