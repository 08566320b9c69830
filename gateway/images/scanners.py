"""Width, height and orientation from the first bytes of a picture, a function for each format.

Pillow reads headers too, but whatever a stranger puts there: a million markers, megabytes of compressed comments, and
for WebP in native code. These functions run in the process that serves all others, so they walk at most `MAX_PARTS`
parts and decode nothing. They read sizes as Pillow does, of the first frame, before any rotation.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gateway.images import orientation

PictureFormat = Literal["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]

MAX_PARTS = 16384  # chunks, markers or blocks, walked in 10 ms
MAX_PROFILE = 1 << 17  # bytes of a compressed text that may hold EXIF
_WIDTH, _HEIGHT = 256, 257  # tags of TIFF
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # JPEG's markers SOF0 … SOF15


class Unreadable(Exception):
    """No picture, or one that is cut off before its size."""


@dataclass(frozen=True)
class Scan:
    """width, height: pixels as they are stored."""

    width: int
    height: int
    orientation: int = 1


def scan(data: bytes) -> tuple[PictureFormat, Scan]:
    """Raises Unreadable."""
    for name, marks, scanner in _SCANNERS:
        if data.startswith(marks) and (name != "WEBP" or data[8:12] == b"WEBP"):
            try:
                return name, scanner(data)
            except (struct.error, IndexError):  # the end of the data
                raise Unreadable from None
    raise Unreadable


def _png(data: bytes) -> Scan:
    width, height = struct.unpack_from(">LL", data, 16)
    if data[8:16] != b"\0\0\0\x0dIHDR":
        raise Unreadable
    texts = {_png_name(kind, body): (kind, body) for kind, body in _png_chunks(data)}
    readers = (("exif", _png_exif), ("profile", _png_profile), ("xmp", _png_xmp))
    found = [read(*texts[name]) for name, read in readers if name in texts]
    return Scan(width, height, next((each for each in found if each is not None), 1))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Those that may hold an orientation; it may stand behind the pixels."""
    at = 8
    for _ in range(MAX_PARTS):
        if at + 8 > len(data):
            return
        length, kind = struct.unpack_from(">L4s", data, at)
        if kind in (b"eXIf", b"zTXt", b"tEXt", b"iTXt"):
            yield kind, data[at + 8 : at + 8 + length]
        at += length + 12


def _png_name(kind: bytes, body: bytes) -> str:
    """What names the orientation there: EXIF's own chunk, ImageMagick's text of hexadecimal digits, XMP. Of chunks with
    the same name the last counts, and no other is read: there may be thousands.
    """
    keyword = b"" if kind == b"eXIf" else body.partition(b"\0")[0]
    if kind == b"iTXt":
        return "xmp" if keyword == b"XML:com.adobe.xmp" else ""
    return "exif" if kind == b"eXIf" else "profile" if keyword == b"Raw profile type exif" else ""


def _png_exif(_: bytes, body: bytes) -> int | None:
    return orientation.of_exif(body)


def _png_xmp(_: bytes, body: bytes) -> int | None:
    return orientation.of_xmp(body)


def _png_profile(kind: bytes, body: bytes) -> int | None:
    text = body.partition(b"\0")[2]
    try:
        plain = zlib.decompressobj().decompress(text[1:], MAX_PROFILE) if kind == b"zTXt" else text[:MAX_PROFILE]
        return orientation.of_exif(bytes.fromhex("".join(plain.decode("latin-1").split("\n")[3:])))
    except (zlib.error, ValueError):
        return None


def _jpeg(data: bytes) -> Scan:
    size: tuple[int, int] | None = None
    exif: list[bytes] = []  # a block that may be cut into several segments
    xmp = b""
    for marker, body in _jpeg_segments(data):
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", body, 1)
            size = width, height
        elif marker == 0xE1 and body.startswith(b"Exif\0\0"):
            exif.append(body[6:] if exif else body)
        elif marker == 0xE1 and body.startswith(b"http://ns.adobe.com/xap/1.0/\0"):
            xmp = body
    if size is None:
        raise Unreadable
    return Scan(*size, orientation.of_exif(b"".join(exif)) or orientation.of_xmp(xmp) or 1)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Up to the first scan, as Pillow walks: what is between segments is passed over."""
    at = 2
    for _ in range(MAX_PARTS):
        at = data.find(b"\xff", at)
        if at < 0:
            raise Unreadable
        marker = data[at + 1]
        if marker == 0xDA:
            return
        if marker == 0xFF:  # padding
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:  # alone
            at += 2
        else:
            length = struct.unpack_from(">H", data, at + 2)[0]
            yield marker, data[at + 4 : at + 2 + length]
            at += 2 + length
    raise Unreadable


def _gif(data: bytes) -> Scan:
    """The screen, or more where the first frame stands out of it."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    parts = iter(range(MAX_PARTS))
    for _ in parts:
        if data[at : at + 1] == b",":
            left, top, columns, rows = struct.unpack_from("<4H", data, at + 1)
            return Scan(max(width, left + columns), max(height, top + rows))
        if data[at : at + 1] == b"!":
            at = _past_blocks(data, at + 2, parts)
        elif data[at] == 0x3B:  # the end of the file
            break
        else:
            at += 1
    raise Unreadable


def _past_blocks(data: bytes, at: int, parts: Iterator[int]) -> int:
    """`parts`: as many as may still be walked in the whole file."""
    for _ in parts:
        if not data[at]:
            return at + 1
        at += data[at] + 1
    raise Unreadable


def _bmp(data: bytes) -> Scan:
    if struct.unpack_from("<L", data, 14)[0] == 12:  # OS/2's
        return Scan(*struct.unpack_from("<HH", data, 18))
    width, height = struct.unpack_from("<LL", data, 18)
    return Scan(width, (1 << 32) - height if data[25] == 0xFF else height)  # from the top down


def _webp(data: bytes) -> Scan:
    kind = data[12:16]
    if kind == b"VP8X":
        flags, columns, rows = data[20], data[24:27], data[27:30]
        if len(rows) < 3:
            raise Unreadable
        turned = _webp_orientation(data, flags)
        return Scan(1 + int.from_bytes(columns, "little"), 1 + int.from_bytes(rows, "little"), turned)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack_from("<L", data, 21)[0]
        return Scan(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        columns, rows = struct.unpack_from("<HH", data, 26)
        return Scan(columns & 0x3FFF, rows & 0x3FFF)
    raise Unreadable


def _webp_orientation(data: bytes, flags: int) -> int:
    found: dict[bytes, bytes] = {}  # the first of each kind, which counts
    at = 12
    for _ in range(MAX_PARTS):
        if not flags & 0x0C or at + 8 > len(data):  # neither EXIF nor XMP
            break
        kind, length = struct.unpack_from("<4sL", data, at)
        if kind in (b"EXIF", b"XMP "):
            found.setdefault(kind, data[at + 8 : at + 8 + length])
        at += 8 + length + length % 2
    exif, xmp = found.get(b"EXIF", b""), found.get(b"XMP ", b"")
    return orientation.of_exif(exif) or orientation.of_xmp(xmp) or 1


def _tiff(data: bytes) -> Scan:
    numbers = orientation.directory(data, (_WIDTH, _HEIGHT, orientation.TAG))
    if _WIDTH not in numbers or _HEIGHT not in numbers:
        raise Unreadable
    return Scan(numbers[_WIDTH], numbers[_HEIGHT], numbers.get(orientation.TAG, 1))


_SCANNERS: tuple[tuple[PictureFormat, bytes | tuple[bytes, ...], Callable[[bytes], Scan]], ...] = (
    ("PNG", b"\x89PNG\r\n\x1a\n", _png),
    ("JPEG", b"\xff\xd8\xff", _jpeg),
    ("WEBP", b"RIFF", _webp),
    ("GIF", (b"GIF87a", b"GIF89a"), _gif),
    ("BMP", b"BM", _bmp),
    ("TIFF", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
)
