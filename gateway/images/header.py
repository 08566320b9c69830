"""What a picture's first bytes say of it: which format, how many pixels. Decides whether it is worth decoding.

A few kilobytes can say that they hold a gigabyte of pixels, so the size is bounded before anything is decoded. What
the bytes say is compared with what comes out, in `gateway.images.decoding`.
"""

from dataclasses import dataclass

from gateway.errors import RequestError
from gateway.images.orientation import ON_ITS_SIDE
from gateway.images.scanners import PictureFormat, Unreadable, scan

MIN_SIDE = 8  # pixels; of arrays with a side of 1 or 3, processors cannot tell rows from colours
MAX_ASPECT = 200  # the longer side by the shorter: where Qwen2-VL's processor ends


@dataclass(frozen=True)
class PictureHeader:
    """width, height: pixels, after the rotation that EXIF asks for."""

    format: PictureFormat
    width: int
    height: int


def read_header(data: bytes, max_pixels: int) -> PictureHeader:
    """Raises RequestError INVALID, without `param`: not a picture of these formats, or its size is out of bounds."""
    try:
        name, found = scan(data)
    except Unreadable:
        raise RequestError.invalid("the image is not a whole PNG, JPEG, WebP, GIF, BMP or TIFF file") from None
    width, height = found.width, found.height
    if found.orientation in ON_ITS_SIDE:
        width, height = height, width
    if problem := _problem(width, height, max_pixels):
        raise RequestError.invalid(f"the image has {width} x {height} pixels; {problem}")
    return PictureHeader(name, width, height)


def _problem(width: int, height: int, max_pixels: int) -> str | None:
    shorter, longer = sorted((width, height))
    if width * height > max_pixels:
        return f"at most {max_pixels} in all may be sent (--max-image-pixels)"
    if shorter < MIN_SIDE:
        return f"each side must have at least {MIN_SIDE}"
    if longer > MAX_ASPECT * shorter:
        return f"the longer side may be at most {MAX_ASPECT} times the shorter"
    return None
