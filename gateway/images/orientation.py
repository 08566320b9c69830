"""Whether a picture is shown on its side: the orientation that its EXIF or XMP names, 1 to 8, 1 where none does.

Only as much is read as that takes. What is read otherwise by the decoder is found out there: a picture that comes out
in another size than was said here is refused.
"""

import re
import struct

ON_ITS_SIDE = (5, 6, 7, 8)  # width and height change places
TAG = 274
MAX_ENTRIES = 4096  # of a directory; cameras write below 100

_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_SHORT, _LONG, _LONG8 = 3, 4, 16


def of_exif(exif: bytes) -> int | None:
    """Of a block of EXIF, with or without its `Exif` mark."""
    exif = exif.removeprefix(b"Exif\0\0")
    return directory(exif, (TAG,)).get(TAG)


def of_xmp(xmp: bytes) -> int | None:
    found = _XMP.search(xmp)
    return int(found[1]) if found else None


def directory(data: bytes, wanted: tuple[int, ...]) -> dict[int, int]:
    """The whole numbers under tags `wanted` in the first directory of TIFF's structure, which EXIF has too.

    Of a tag that occurs twice the later counts, as in Pillow. What is not there, or is no single number, is left out.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    try:
        if order is None:
            return {}
        return _entries(data, order, wanted)
    except (struct.error, OverflowError):  # the end of the data
        return {}


def _entries(data: bytes, order: str, wanted: tuple[int, ...]) -> dict[int, int]:
    big = struct.unpack_from(order + "H", data, 2)[0] == 43  # BigTIFF: all numbers are longer
    start = struct.unpack_from(order + ("Q" if big else "L"), data, 8 if big else 4)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), data, start)[0]
    start, size, layout = (start + 8, 20, "HHQ") if big else (start + 2, 12, "HHL")
    found = {}
    for number in range(min(count, MAX_ENTRIES)):
        at = start + number * size
        tag, kind, length = struct.unpack_from(order + layout, data, at)
        code = {_SHORT: "H", _LONG: "L", _LONG8: "Q" if big else ""}.get(kind)
        if tag in wanted and length == 1 and code:
            found[tag] = struct.unpack_from(order + code, data, at + struct.calcsize(order + layout))[0]
    return found
