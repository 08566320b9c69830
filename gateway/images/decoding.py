"""From a picture's file to its pixels, as transformers' `load_image` has them, in a process that may die of it.

Pillow decodes, and only the format that the header named. Of an animation the first frame counts. What comes out must
have the size that the header said, for which memory, time and tokens were reckoned.
"""

import io
import warnings
from collections.abc import Iterator

from PIL import Image, ImageOps, MpoImagePlugin

from gateway.images.scanners import PictureFormat


class OtherSize(Exception):
    """The picture is not of the size that its header said."""


def decode(data: bytes, name: PictureFormat, width: int, height: int) -> Image.Image:
    """An upright RGB picture. Raises OtherSize, MemoryError, and whatever Pillow raises."""
    with Image.open(io.BytesIO(data), formats=(name,)) as picture:
        if sorted(picture.size) != sorted((width, height)):
            raise OtherSize
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    if upright.size != (width, height):
        raise OtherSize
    return upright


def prepare() -> None:
    """Import all that decoding may need, which a process without files cannot, and switch Pillow's warnings off: sizes
    are checked here, and a warning needs the file of its source.
    """
    warnings.simplefilter("ignore")
    Image.init()
    assert MpoImagePlugin.MpoImageFile.format == "MPO"  # what Pillow calls a JPEG with more pictures behind the first
    for name, data, size in _samples():
        decode(data, name, *size)


def _samples() -> Iterator[tuple[PictureFormat, bytes, tuple[int, int]]]:
    modes: dict[PictureFormat, tuple[str, ...]] = {
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
        "JPEG": ("L", "RGB", "CMYK"),
        "WEBP": ("RGB", "RGBA"),
        "GIF": ("L", "P", "RGBA"),
        "BMP": ("1", "L", "P", "RGB", "RGBA"),
        "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "LAB", "F"),
    }
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in modes:
        for mode in modes[name]:
            file = io.BytesIO()
            Image.new(mode, (16, 8)).save(file, name, **({} if name in ("BMP", "GIF") else {"exif": exif}))
            yield name, file.getvalue(), (16, 8) if name in ("BMP", "GIF") else (8, 16)
