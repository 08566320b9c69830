"""GGUF's block types as codes with scales, vectorised over blocks: how a matrix stays as its file holds it.

A block is a few dozen bytes of consecutive inputs of one row: codes in planes of 1, 2 or 4 bits, a scale for each group
of 16 or 32 inputs, and for some types a minimum. The larger types ("K") have scales of 6 or 8 bits, and f16 to multiply
them by. Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h and ggml-quants.c beside it.

Types whose codes number whole vectors (IQ1, IQ2, IQ3) or that pack three values (TQ1, TQ2) are not here: the `gguf`
library reads those in floats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.architecture.weight_format import Component, WeightFormat

NAME = "gguf"
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
HALVES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values of e2m1
E2M1_BIAS = 128  # of an exponent that multiplies `HALVES`
E2M1_MOST = 252  # the largest exponent whose values f32 holds
NEGLIGIBLE = np.float32(2.0**-29)  # of a minimum: 31 times as much is below f32's rounding

Decode = Callable[[np.ndarray], np.ndarray]  # blocks u8 [n, bytes] → [n, …]


@dataclass(frozen=True)
class BlockType:
    """A weight is its code, or what the table has for it, times the scale of its group, less the group's minimum.

    codes: → u8 or i8 [n, inputs], as `format.values` says.
    scales: → [n, groups], as `format.scales` says.
    minima: → f32 [n, groups].
    """

    format: WeightFormat
    codes: Decode
    scales: Decode
    minima: Decode | None = None

    def dense(self, blocks: np.ndarray) -> np.ndarray:
        """f32 [n, inputs]: the numbers that the `gguf` library gives, bit by bit."""
        codes = self.codes(blocks)
        numbers = np.asarray(self.format.table, np.float32).take(codes) if self.format.table else codes
        weights = numbers.astype(np.float32, copy=False).reshape(len(blocks), -1, self.format.group)
        weights *= self.scales(blocks).astype(np.float32)[..., None]
        if self.minima is not None:
            weights -= self.minima(blocks)[..., None]
        return weights.reshape(len(blocks), -1)

    def component(self, component: Component, blocks: np.ndarray) -> np.ndarray:
        """[n, inputs or groups] of a component in the dtype of `format`.

        A group whose codes do not change its weights by as much as f32 rounds them is (0 - minimum) · 1: no zero point
        says so with its own scale, which is 0 or next to it.
        """
        if self.minima is None:
            return self.codes(blocks) if component == "values" else self.scales(blocks)
        scales, minima = self.scales(blocks).astype(np.float32), self.minima(blocks)
        flat = np.abs(scales) <= np.abs(minima) * NEGLIGIBLE
        if component == "values":
            codes = self.codes(blocks)
            if flat.any():
                codes.reshape(*flat.shape, -1)[flat] = 0
            return codes
        scales = np.where(flat, np.float32(1), scales)
        return minima / scales if component == "zeros" else scales.astype(self.format.scales)


def finite(numbers: np.ndarray) -> np.ndarray:
    """`numbers`. Raises ValueError where one is infinite or not a number."""
    if not np.isfinite(numbers).all():
        raise ValueError("has a scale or a minimum that is not a finite number")
    return numbers


def _planes(octets: np.ndarray, bits: int, width: int) -> np.ndarray:
    """u8 [n, bytes · 8 / bits]: each run of `width` bytes holds planes of `width` codes, the first in its lowest bits.

    A loop over planes is fifty times as fast as a shift that is broadcast over them (NumPy 2.4).
    """
    runs = np.ascontiguousarray(octets).reshape(len(octets), -1, width)
    codes = np.empty((len(octets), runs.shape[1], 8 // bits, width), np.uint8)
    for plane in range(8 // bits):
        codes[:, :, plane] = (runs >> (bits * plane)) & (2**bits - 1)
    return codes.reshape(len(octets), -1)


def _signed(codes: np.ndarray, zero: int) -> np.ndarray:
    """i8: `codes` less `zero`."""
    return codes.view(np.int8) - np.int8(zero)


def _half(start: int) -> Decode:
    """f16 [n, 1] at byte `start`."""
    return lambda blocks: finite(blocks[:, start : start + 2].view("<f2"))


def _negative(decode: Decode) -> Decode:
    return lambda blocks: -decode(blocks).astype(np.float32)


def _nibbles(start: int) -> Decode:
    """u8 [n, 32]: 16 bytes, whose low halves come first."""
    return lambda blocks: _planes(blocks[:, start : start + 16], 4, 16)


def _five_bits(start: int) -> Decode:
    """u8 [n, 32]: 32 highest bits, then nibbles."""

    def codes(blocks: np.ndarray) -> np.ndarray:
        high = np.unpackbits(np.ascontiguousarray(blocks[:, start : start + 4]), axis=1, bitorder="little")
        return _planes(blocks[:, start + 4 : start + 20], 4, 16) | (high << 4)

    return codes


def _less(decode: Decode, zero: int) -> Decode:
    return lambda blocks: _signed(decode(blocks), zero)


def _mxfp4_scales(blocks: np.ndarray) -> np.ndarray:
    exponents = blocks[:, :1].astype(np.int32)
    powers = np.ldexp(np.float32(1), exponents - E2M1_BIAS)
    return finite(np.where(exponents > E2M1_MOST, np.float32(np.nan), powers))


def _multiplied(start: int, factors: Decode) -> Decode:
    """f32 [n, groups]: small integers times the f16 at byte `start`."""
    half = _half(start)
    return lambda blocks: half(blocks).astype(np.float32) * factors(blocks).astype(np.float32)


def _q3_scales(blocks: np.ndarray) -> np.ndarray:
    """i8 [n, 16] of 6 bits: 4 in nibbles, 2 in a plane of their own."""
    return _signed(_planes(blocks[:, 96:104], 4, 8) | (_planes(blocks[:, 104:108], 2, 4) << 4), 32)


def _q3_codes(blocks: np.ndarray) -> np.ndarray:
    """A bit that is set in the mask adds 4, less 4."""
    return _signed(_planes(blocks[:, 32:96], 2, 32) | (_planes(blocks[:, :32], 1, 32) << 2), 4)


def _k_scales(blocks: np.ndarray) -> np.ndarray:
    """u8 [n, 8] of 6 bits: the last four have their highest 2 bits above the first four's 6."""
    first, last = blocks[:, 4:8], blocks[:, 12:16]
    return np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)


def _k_minima(blocks: np.ndarray) -> np.ndarray:
    """u8 [n, 8], as `_k_scales`."""
    first, last = blocks[:, 8:12], blocks[:, 12:16]
    return np.concatenate([first & 63, last >> 4 | first >> 6 << 4], axis=1)


def _q5_k_codes(blocks: np.ndarray) -> np.ndarray:
    return _planes(blocks[:, 48:176], 4, 32) | (_planes(blocks[:, 16:48], 1, 32) << 4)


def _q6_k_codes(blocks: np.ndarray) -> np.ndarray:
    return _signed(_planes(blocks[:, :128], 4, 64) | (_planes(blocks[:, 128:192], 2, 32) << 4), 32)


def _iq4_xs_scales(blocks: np.ndarray) -> np.ndarray:
    """i8 [n, 8] of 6 bits, two low halves in a byte and four highest pairs in another."""
    return _signed(_planes(blocks[:, 4:8], 4, 1) | (_planes(blocks[:, 2:4], 2, 1) << 4), 32)


def _format(
    bits: int,
    group: int,
    values: str = "int8",
    scales: str = "float32",
    minima: bool = False,
    table: tuple[int, ...] = (),
) -> WeightFormat:
    numbers = tuple(map(float, table))
    return WeightFormat(NAME, values, scales, "float32" if minima else None, group, numbers, bits)


BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(_format(4, 32, scales="float16"), _less(_nibbles(2), 8), _half(0)),
    "Q4_1": BlockType(_format(4, 32, "uint8", "float16", minima=True), _nibbles(4), _half(0), _negative(_half(2))),
    "Q5_0": BlockType(_format(8, 32, scales="float16"), _less(_five_bits(2), 16), _half(0)),
    "Q5_1": BlockType(_format(8, 32, "uint8", "float16", minima=True), _five_bits(4), _half(0), _negative(_half(2))),
    "Q8_0": BlockType(_format(8, 32, scales="float16"), lambda blocks: blocks[:, 2:].view(np.int8), _half(0)),
    "Q2_K": BlockType(
        _format(4, 16, "uint8", minima=True),
        lambda blocks: _planes(blocks[:, 16:80], 2, 32),
        _multiplied(80, lambda blocks: blocks[:, :16] & 15),
        _multiplied(82, lambda blocks: blocks[:, :16] >> 4),
    ),
    "Q3_K": BlockType(_format(4, 16), _q3_codes, _multiplied(108, _q3_scales)),
    "Q4_K": BlockType(
        _format(4, 32, "uint8", minima=True),
        lambda blocks: _planes(blocks[:, 16:144], 4, 32),
        _multiplied(0, _k_scales),
        _multiplied(2, _k_minima),
    ),
    "Q5_K": BlockType(
        _format(8, 32, "uint8", minima=True), _q5_k_codes, _multiplied(0, _k_scales), _multiplied(2, _k_minima)
    ),
    "Q6_K": BlockType(_format(8, 16), _q6_k_codes, _multiplied(208, lambda blocks: blocks[:, 192:208].view(np.int8))),
    "IQ4_NL": BlockType(_format(4, 32, "uint8", "float16", table=IQ4), _nibbles(2), _half(0)),
    "IQ4_XS": BlockType(
        _format(4, 32, "uint8", table=IQ4),
        lambda blocks: _planes(blocks[:, 8:136], 4, 16),
        _multiplied(0, _iq4_xs_scales),
    ),
    "MXFP4": BlockType(_format(4, 32, "uint8", table=HALVES), _nibbles(1), _mxfp4_scales),
}
