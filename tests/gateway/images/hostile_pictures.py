"""Files that a stranger might send as a picture, by name: odd, damaged, and made to hurt.

Each is refused, or becomes the pixels that Pillow reads. All are made here, the same in every run.
"""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

Files = Iterator[tuple[str, bytes]]

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK", "YCbCr"),
    "WEBP": ("L", "RGB", "RGBA"),
    "GIF": ("1", "L", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "F", "I;16"),
}
TURNED = ("PNG", "JPEG", "WEBP", "TIFF")  # formats that have EXIF


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture = Image.fromarray(values)
    if mode == "I;16":
        return Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    if mode in ("LAB", "F"):
        return Image.new(mode, (width, height), 77 if mode == "F" else (90, 20, 30))
    return picture.convert(mode)


def saved(picture: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    """With `chunks` between header and end, whatever the header says."""
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *chunks, chunk(b"IEND", b"")))


def png_bomb(width: int, height: int) -> bytes:
    """All of its pixels, in a thousandth of their size."""
    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, chunk(b"IDAT", body))


def modes() -> Files:
    for name, of_format in MODES.items():
        for mode in of_format:
            yield f"{name} {mode}", saved(noise(33, 21, mode), name)
    for options in ({"progressive": True}, {"optimize": True, "quality": 5}, {"subsampling": 0, "quality": 100}):
        yield f"JPEG {options}", saved(noise(33, 21), "JPEG", **options)
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group3", "group4"):
        mode = "1" if compression.startswith("group") else "RGB"
        yield f"TIFF {compression}", saved(noise(33, 21, mode), "TIFF", compression=compression)
    yield "WEBP lossless", saved(noise(33, 21), "WEBP", lossless=True)
    yield "PNG palette with alpha", saved(noise(33, 21, "P"), "PNG", transparency=bytes(range(256)))
    yield "GIF with a transparent colour", saved(noise(33, 21, "P"), "GIF", transparency=7)
    deep = png(16, 16, chunk(b"IDAT", zlib.compress(bytes(16 * (1 + 6 * 16)))), depth=16)
    yield "PNG of 16 bits a colour", deep
    yield (
        "PNG with grey alpha of 16 bits",
        png(16, 16, chunk(b"IDAT", zlib.compress(bytes(16 * (1 + 4 * 16)))), depth=16, colour=4),
    )


def turned() -> Files:
    for name in TURNED:
        for orientation in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
            yield f"{name} turned {orientation}", saved(noise(40, 24), name, exif=exif(orientation))
    pixels = chunk(b"IDAT", zlib.compress(bytes(range(73)) * 40))
    tail = chunk(b"eXIf", exif(6).tobytes().removeprefix(b"Exif\0\0"))
    yield "PNG turned behind its pixels", png(24, 40, pixels, tail)
    xmp = '<x tiff:Orientation="6"/>'
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp)
    yield "PNG turned by XMP", saved(noise(40, 24), "PNG", pnginfo=text)
    for name in ("JPEG", "WEBP"):
        yield f"{name} turned by XMP", saved(noise(40, 24), name, xmp=xmp.encode())
    raw = exif(8).tobytes()
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(raw):8}\n{raw.hex()}\n", zip=True)
    yield "PNG turned by ImageMagick's text", saved(noise(40, 24), "PNG", pnginfo=text)


def frames() -> Files:
    several = [noise(40, 30, seed=seed) for seed in range(4)]
    for name in ("GIF", "WEBP", "PNG", "TIFF", "MPO"):
        yield f"animated {name}", saved(several[0], name, save_all=True, append_images=several[1:])
    gif = saved(noise(40, 30, "P"), "GIF")
    yield "GIF without a frame", gif[:13] + gif[13 : 13 + 768] + b";"
    place = gif.index(b",", 13 + 768)
    yield "GIF whose frame stands out", gif[: place + 1] + struct.pack("<HH", 30, 20) + gif[place + 5 :]
    yield "GIF with 20,000 comments", gif[:place] + b"!\xfe\x01a\0" * 20_000 + gif[place:]
    thousand = [noise(8, 8, "P", seed) for seed in range(1000)]
    yield "GIF of a thousand frames", saved(thousand[0], "GIF", save_all=True, append_images=thousand[1:])


def sizes() -> Files:
    sides = ((1, 1), (1, 64), (64, 1), (3, 3), (7, 9), (8, 8), (8, 1600), (1608, 8), (30_000, 1), (1, 30_000))
    for width, height in sides:
        yield f"PNG {width} x {height}", saved(noise(width, height), "PNG")
    for width, height in ((0, 64), (64, 0), (1 << 31, 1 << 31), (0xFFFFFFFF, 8), (4097, 4096)):
        yield f"PNG said to be {width} x {height}", png(width, height, chunk(b"IDAT", zlib.compress(bytes(999))))
    small = saved(noise(64, 64), "JPEG")
    place = small.index(b"\xff\xc0") + 5
    for height, width in ((0, 64), (64, 0), (65_535, 65_535), (65, 64), (4096, 4096)):
        yield (
            f"JPEG said to be {width} x {height}",
            small[:place] + struct.pack(">HH", height, width) + small[place + 4 :],
        )
    for name, offset, layout in (("GIF", 6, "<HH"), ("BMP", 18, "<LL"), ("WEBP", 26, "<HH")):
        file = saved(noise(64, 64), name)
        for size in ((0, 0), (16_000, 16_000), (1000, 1000)):
            numbers = struct.pack(layout, *size)
            yield f"{name} said to be {size}", file[:offset] + numbers + file[offset + len(numbers) :]


def bombs() -> Files:
    yield "PNG of 5,000 x 5,000", png_bomb(5000, 5000)
    yield "PNG of 4,000 x 4,000 within the bounds", png_bomb(4000, 4000)
    text = zlib.compress(bytes(60 << 20), 9)
    pixels = chunk(b"IDAT", zlib.compress(bytes(73) * 24))
    yield "PNG with texts of 60 MB", png(24, 24, *[chunk(b"zTXt", b"a\0\0" + text)] * 8, pixels)
    yield "PNG with a profile of 60 MB", png(24, 24, chunk(b"iCCP", b"a\0\0" + text), pixels)
    yield "PNG with EXIF in 60 MB", png(24, 24, chunk(b"zTXt", b"Raw profile type exif\0\0" + text), pixels)
    yield "PNG with 100,000 chunks", png(24, 24, *[chunk(b"tEXt", b"a\0b")] * 100_000, pixels)
    yield "PNG with 60 MB behind its pixels", png(24, 24, chunk(b"IDAT", zlib.compress(bytes(60 << 20), 9)))
    jpeg = saved(noise(64, 64), "JPEG")
    yield "JPEG with 500,000 markers", jpeg[:2] + b"\xff\xfe\0\2" * 500_000 + jpeg[2:]
    yield "JPEG with 2 MB of padding", jpeg[:2] + b"\xff" * (2 << 20) + jpeg[2:]
    flat = saved(Image.new("RGB", (2000, 2000), (9, 99, 200)), "JPEG", progressive=True)
    place = flat.rindex(b"\xff\xda")
    yield "JPEG with 3,000 scans", flat[:place] + flat[place:-2] * 3000 + flat[-2:]
    yield "TIFF with a directory of 65,535", b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHLL", 256, 3, 1, 64) * 65_535
    yield "TIFF whose directory is itself", b"II*\0\x04\0\0\0" + bytes(99)
    yield "TIFF with a size far away", b"II*\0" + struct.pack("<L", 0xFFFFFFF0)
    yield "BigTIFF far away", b"II+\0\x08\0\0\0" + b"\xff" * 16
    webp = saved(noise(64, 64), "WEBP", exif=exif(6))
    yield "WEBP with a length that lies", webp[:4] + b"\xff\xff\xff\xff" + webp[8:]
    yield "WEBP with chunks of nothing", webp[:30] + b"junk\0\0\0\0" * 50_000 + webp[30:]


def damaged() -> Files:
    """Cut off, and with bytes changed."""
    dice = random.Random(1)
    for name in MODES:
        file = saved(noise(48, 32), name, **({"exif": exif(6)} if name in TURNED else {}))
        for share in (0.02, 0.1, 0.3, 0.5, 0.9, 0.999):
            yield f"{name} cut at {share}", file[: int(len(file) * share)]
        for number in range(10):
            bytes_ = bytearray(file)
            for _ in range(1 + number):
                bytes_[dice.randrange(len(file) if number % 2 else min(200, len(file)))] = dice.randrange(256)
            yield f"{name} damaged {number}", bytes(bytes_)


def impostors() -> Files:
    picture = saved(noise(32, 32), "PNG")
    yield "nothing", b""
    yield "one byte", b"\x89"
    yield "text", b"hello, world"
    yield "SVG", b"<svg xmlns='http://www.w3.org/2000/svg' width='64' height='64'/>"
    yield "EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n(/etc/passwd) run\n"
    yield "PDF", b"%PDF-1.7\n"
    yield "gzip", b"\x1f\x8b" + bytes(64)
    yield "ICO", b"\0\0\1\0\1\0\x10\x10" + bytes(64)
    yield "JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(64)
    yield "PPM", b"P6 64 64 255\n" + bytes(64 * 64 * 3)
    yield "FITS", b"SIMPLE  =                    T" + bytes(2880)
    yield "AVIF", b"\0\0\0\x20ftypavif" + bytes(64)
    yield "PNG behind text", b"hello" + picture
    yield "PNG with a page behind it", picture + b"<script>alert(1)</script>"
    yield "PNG with an archive behind it", picture + b"PK\3\4" + bytes(99)
    yield "GIF that is a script", b"GIF89a/*" + bytes(32) + b"*/=1;alert(1)"
    yield "RIFF that is a sound", b"RIFF\x24\0\0\0WAVEfmt " + bytes(64)
    yield "PNG mark and a JPEG", picture[:8] + saved(noise(32, 32), "JPEG")


def all_files() -> Files:
    for kind in (modes, turned, frames, sizes, bombs, damaged, impostors):
        yield from kind()
