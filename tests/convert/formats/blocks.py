"""GGUF's block formats, value by value, from the layout of ggml's `ggml-common.h`: slow, and easy to check by eye."""

import struct
from collections.abc import Callable


def f16(data: bytes) -> float:
    return float(struct.unpack("<e", data)[0])


def q4_0(b: bytes) -> list[float]:
    return [(q - 8) * f16(b[:2]) for q in nibbles(b[2:18])]


def q4_1(b: bytes) -> list[float]:
    return [q * f16(b[:2]) + f16(b[2:4]) for q in nibbles(b[4:20])]


def q5_0(b: bytes) -> list[float]:
    high = int.from_bytes(b[2:6], "little")
    return [((q | (high >> j & 1) << 4) - 16) * f16(b[:2]) for j, q in enumerate(nibbles(b[6:22]))]


def q5_1(b: bytes) -> list[float]:
    high = int.from_bytes(b[4:8], "little")
    return [(q | (high >> j & 1) << 4) * f16(b[:2]) + f16(b[2:4]) for j, q in enumerate(nibbles(b[8:24]))]


def q8_0(b: bytes) -> list[float]:
    return [q * f16(b[:2]) for q in struct.unpack("<32b", b[2:34])]


def q2_k(b: bytes) -> list[float]:
    scales, low, d, dmin = b[:16], b[16:80], f16(b[80:82]), f16(b[82:84])
    return [d * (scales[i // 16] & 15) * two_bits(low, i) - dmin * (scales[i // 16] >> 4) for i in range(256)]


def q3_k(b: bytes) -> list[float]:
    mask, low, packed, d = b[:32], b[32:96], b[96:108], f16(b[108:110])

    def scale(k: int) -> int:
        return (packed[k % 8] >> 4 * (k // 8) & 15 | (packed[8 + k % 4] >> 2 * (k // 4) & 3) << 4) - 32

    def value(i: int) -> int:
        return two_bits(low, i) - (0 if mask[i % 32] >> i // 32 & 1 else 4)

    return [d * scale(i // 16) * value(i) for i in range(256)]


def q4_k(b: bytes) -> list[float]:
    return k_groups(b, lambda i: pair_nibble(b[16:144], i))


def q5_k(b: bytes) -> list[float]:
    return k_groups(b, lambda i: pair_nibble(b[48:176], i) | (b[16 + i % 32] >> i // 32 & 1) << 4)


def q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), f16(b[208:210])

    def value(i: int) -> int:
        half, quarter, j = i // 128, i % 128 // 32, i % 32
        nibble = low[64 * half + 32 * (quarter % 2) + j] >> 4 * (quarter // 2) & 15
        return (nibble | (high[32 * half + j] >> 2 * quarter & 3) << 4) - 32

    return [d * scales[i // 16] * value(i) for i in range(256)]


def nibbles(data: bytes) -> list[int]:
    """The first half of the values sits in the low nibbles, the second half in the high ones."""
    return [byte & 15 for byte in data] + [byte >> 4 for byte in data]


def two_bits(data: bytes, i: int) -> int:
    return data[32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3


def pair_nibble(data: bytes, i: int) -> int:
    """Groups of 32 values: even groups in the low nibbles of 32 bytes, the odd group after it in their high ones."""
    return data[32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2) & 15


def k_groups(b: bytes, value: Callable[[int], int]) -> list[float]:
    """d·scale·q − dmin·min with eight six-bit scales and mins packed into 12 bytes."""
    d, dmin, packed = f16(b[:2]), f16(b[2:4]), b[4:16]

    def scale(g: int) -> int:
        return packed[g] & 63 if g < 4 else packed[g + 4] & 15 | packed[g - 4] >> 6 << 4

    def minimum(g: int) -> int:
        return packed[g + 4] & 63 if g < 4 else packed[g + 4] >> 4 | packed[g] >> 6 << 4

    return [d * scale(i // 32) * value(i) - dmin * minimum(i // 32) for i in range(256)]


DEQUANTISE: dict[str, Callable[[bytes], list[float]]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
