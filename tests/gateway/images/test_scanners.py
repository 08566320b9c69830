"""Headers are read in bounded time, whatever stands in them, and never raise anything else."""

import random
import struct
import time
import zlib

import pytest

from gateway.errors import RequestError
from gateway.images.header import read_header
from gateway.images.scanners import Unreadable, scan
from tests.gateway.images.helpers import MAX_PIXELS, pillows_pixels
from tests.gateway.images.hostile_pictures import MODES, all_files, chunk, exif, modes, noise, saved

SECONDS = 0.3  # 11 ms on an idle machine


@pytest.mark.slow  # 4 s to make them
def test_no_file_holds_the_event_loop() -> None:
    for name, data in all_files():
        began = time.thread_time()
        try:
            read_header(data, MAX_PIXELS)
        except RequestError as error:
            assert len(error.message) < 200, name
        assert time.thread_time() - began < SECONDS, name


def repeated() -> dict[str, bytes]:
    """Files of 20 MB that have one thing thousands of times, each of which takes as long as may be."""
    most = 20 << 20
    many = b"II*\0\x08\0\0\0" + struct.pack("<H", 4096) + struct.pack("<HHLL", 274, 3, 1, 1) * 4096
    png, jpeg, webp = (saved(noise(64, 64), name) for name in ("PNG", "JPEG", "WEBP"))
    text = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\n\n\n" + b"00" * 60_000))
    segment = b"\xff\xe1" + struct.pack(">H", 1208) + b"Exif\0\0" + bytes(1200)
    extended = webp[:12] + b"VP8X\x0a\0\0\0\x08\0\0\0\x3f\0\0\x3f\0\0"
    block = b"!\xfe" + b"\1x" * 16_000 + b"\0"
    return {
        "PNG's EXIF": png[:33] + chunk(b"eXIf", many) * (most // len(many)) + png[33:],
        "PNG's profiles": png[:33] + text * 16_000 + png[33:],
        "JPEG's EXIF": jpeg[:2] + segment * 16_000 + jpeg[2:],
        "WebP's EXIF": extended + (b"EXIF" + struct.pack("<L", len(many)) + many) * (most // len(many)),
        "GIF's blocks": b"GIF89a\x40\0\x40\0\0\0\0" + block * (most // len(block)),
    }


def test_what_stands_in_a_file_thousands_of_times_is_read_once() -> None:
    for name, data in repeated().items():
        began = time.thread_time()
        try:
            assert read_header(data, MAX_PIXELS).width == 64, name
        except RequestError:
            assert name == "GIF's blocks"
        assert time.thread_time() - began < SECONDS, name


def test_of_orientations_that_stand_in_a_file_twice_the_one_counts_that_pillow_takes() -> None:
    png, webp = saved(noise(64, 32), "PNG"), saved(noise(64, 32), "WEBP", exif=exif(6))
    turned, upright = chunk(b"eXIf", exif(6).tobytes()[6:]), chunk(b"eXIf", exif(1).tobytes()[6:])
    other = exif(1).tobytes()
    other = b"EXIF" + struct.pack("<L", len(other)) + other + bytes(len(other) % 2)
    for data in (png[:33] + turned + upright + png[33:], png[:33] + upright + turned + png[33:], webp + other):
        header = read_header(data, MAX_PIXELS)
        assert (header.height, header.width) == pillows_pixels(data).shape[:2]


@pytest.mark.parametrize("name", MODES)
def test_changed_bytes_are_a_size_or_a_refusal(name: str) -> None:
    dice = random.Random(name)
    file = saved(noise(40, 30), name, **({"exif": exif(6)} if name in ("PNG", "JPEG", "WEBP", "TIFF") else {}))
    for _ in range(3000):
        data = bytearray(file[: dice.randrange(len(file))] if dice.random() < 0.3 else file)
        for _ in range(dice.randrange(1, 9)):
            if data:
                data[dice.randrange(min(len(data), 120))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            scan(bytes(data))
        except Unreadable:
            continue


@pytest.mark.parametrize("name, data", list(modes()), ids=lambda each: each if isinstance(each, str) else "")
def test_sizes_are_those_that_pillow_reads(name: str, data: bytes) -> None:
    header = read_header(data, MAX_PIXELS)
    assert (header.height, header.width) == pillows_pixels(data).shape[:2]
    assert name.startswith(header.format)


@pytest.mark.parametrize(
    "width, height, most, words",
    [
        (100, 101, 10_000, "100 x 101 pixels; at most 10000 in all may be sent (--max-image-pixels)"),
        (7, 100, 10_000, "each side must have at least 8"),
        (8, 1601, 20_000, "the longer side may be at most 200 times the shorter"),
    ],
)
def test_sizes_out_of_bounds_are_refused_with_the_bound(width: int, height: int, most: int, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_header(saved(noise(width, height), "PNG"), most)
    assert words in caught.value.message
    assert read_header(saved(noise(100, 100), "PNG"), 10_000).width == 100
