"""GGUF's block formats, value by value, from the layout of ggml's `ggml-common.h`: slow, and easy to check by eye.

Only the code books of the smallest formats, a thousand numbers each, are those of the `gguf` library.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any

from gguf import quants

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # halves, of e2m1


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


def iq4_nl(b: bytes) -> list[float]:
    return [IQ4_VALUES[q] * f16(b[:2]) for q in nibbles(b[2:18])]


def iq4_xs(b: bytes) -> list[float]:
    d, high, low, packed = f16(b[:2]), int.from_bytes(b[2:4], "little"), b[4:8], b[8:136]

    def scale(g: int) -> int:
        return (low[g // 2] >> 4 * (g % 2) & 15 | (high >> 2 * g & 3) << 4) - 32

    groups = (nibbles(packed[16 * g : 16 * g + 16]) for g in range(8))
    return [d * scale(g) * IQ4_VALUES[q] for g, group in enumerate(groups) for q in group]


def mxfp4(b: bytes) -> list[float]:
    return [MXFP4_VALUES[q] * 2.0 ** (b[0] - 128) for q in nibbles(b[1:17])]


def tq1_0(b: bytes) -> list[float]:
    """Five ternary digits a byte, which is a fraction of 256: the first digit counts thirds of 256."""
    runs = [(b[:32], 5), (b[32:48], 5), (b[48:52], 4)]
    digits = [byte * 3**n % 256 * 3 // 256 for run, count in runs for n in range(count) for byte in run]
    return [(digit - 1) * f16(b[52:54]) for digit in digits]


def tq2_0(b: bytes) -> list[float]:
    return [(two_bits(b[:64], i) - 1) * f16(b[64:66]) for i in range(256)]


def iq2_xxs(b: bytes) -> list[float]:
    """Eight groups of 32: four code words, and four times seven signs beside a scale."""
    values = []
    for g in range(8):
        codes, packed = b[2 + 8 * g : 6 + 8 * g], int.from_bytes(b[6 + 8 * g : 10 + 8 * g], "little")
        scale = f16(b[:2]) * (0.5 + (packed >> 28)) / 4
        for n, code in enumerate(codes):
            values += signed(scale, book("IQ2_XXS")[code], with_parity(packed >> 7 * n & 127))
    return values


def iq2_xs(b: bytes) -> list[float]:
    values = []
    for n, word in enumerate(struct.unpack("<32H", b[2:66])):
        scale = f16(b[:2]) * (0.5 + (b[66 + n // 4] >> 4 * (n // 2 % 2) & 15)) / 4
        values += signed(scale, book("IQ2_XS")[word & 511], with_parity(word >> 9))
    return values


def iq2_s(b: bytes) -> list[float]:
    codes, signs, high, scales = b[2:34], b[34:66], b[66:74], b[74:82]
    values = []
    for n in range(32):
        scale = f16(b[:2]) * (0.5 + (scales[n // 4] >> 4 * (n // 2 % 2) & 15)) / 4
        code = codes[n] | (high[n // 4] >> 2 * (n % 4) & 3) << 8
        values += signed(scale, book("IQ2_S")[code], signs[n])
    return values


def iq3_xxs(b: bytes) -> list[float]:
    values = []
    for n in range(32):
        packed = int.from_bytes(b[66 + 4 * (n // 4) : 70 + 4 * (n // 4)], "little")
        scale = f16(b[:2]) * (0.5 + (packed >> 28)) / 2
        eight = [value for code in b[2 + 2 * n : 4 + 2 * n] for value in book("IQ3_XXS")[code]]
        values += signed(scale, eight, with_parity(packed >> 7 * (n % 4) & 127))
    return values


def iq3_s(b: bytes) -> list[float]:
    codes, high, signs, scales = b[2:66], b[66:74], b[74:106], b[106:110]
    values = []
    for n in range(32):
        scale = f16(b[:2]) * (1 + 2 * (scales[n // 8] >> 4 * (n // 4 % 2) & 15))
        pair = [codes[m] | (high[m // 8] >> m % 8 & 1) << 8 for m in (2 * n, 2 * n + 1)]
        values += signed(scale, [value for code in pair for value in book("IQ3_S")[code]], signs[n])
    return values


def iq1_s(b: bytes) -> list[float]:
    values = []
    for n in range(32):
        packed = int.from_bytes(b[34 + 2 * (n // 4) : 36 + 2 * (n // 4)], "little")
        scale, shift = f16(b[:2]) * (2 * (packed >> 12 & 7) + 1), -0.125 if packed >> 15 else 0.125
        code = b[2 + n] | (packed >> 3 * (n % 4) & 7) << 8
        values += [scale * (value + shift) for value in book("IQ1_S")[code]]
    return values


def iq1_m(b: bytes) -> list[float]:
    codes, high, scales = b[:32], b[32:48], struct.unpack("<4H", b[48:56])
    d = f16(sum((word >> 12) << 4 * i for i, word in enumerate(scales)).to_bytes(2, "little"))
    values = []
    for n in range(32):
        scale = d * (2 * (scales[n // 8] >> 3 * (n // 2 % 4) & 7) + 1)
        nibble = high[n // 2] >> 4 * (n % 2) & 15
        shift = -0.125 if nibble & 8 else 0.125
        values += [scale * (value + shift) for value in book("IQ1_M")[codes[n] | (nibble & 7) << 8]]
    return values


@functools.cache
def book(kind: str) -> list[list[float]]:
    """The code words of a format, four or eight values each."""
    form: Any = getattr(quants, kind)
    form.init_grid()
    return form.grid.reshape(-1, form.grid.shape[-1]).tolist()  # type: ignore[no-any-return]


def signed(scale: float, values: list[float], signs: int) -> list[float]:
    """Bit j is set where value j is negative."""
    return [-scale * value if signs >> j & 1 else scale * value for j, value in enumerate(values)]


def with_parity(signs: int) -> int:
    """Seven signs, and an eighth that makes the number of negative values even."""
    return signs | signs.bit_count() % 2 << 7


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
    "IQ1_S": iq1_s,
    "IQ1_M": iq1_m,
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ2_S": iq2_s,
    "IQ3_XXS": iq3_xxs,
    "IQ3_S": iq3_s,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "MXFP4": mxfp4,
}
