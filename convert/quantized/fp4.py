"""Floats of 4 bits (e2m1) with a scale for each 16 or 32 inputs, two in a byte, the first in its low half.

    MXFP4   codes u8 [out, in/2], scales u8 [out, in/32]: powers of two, stored as exponent + 127
    NVFP4   codes u8 [out, in/2], scales e4m3 [out, in/16], and one scale of the whole matrix

The formats: OCP Microscaling 1.0, and NVIDIA's ModelOpt. compressed-tensors divides by the scale of the whole,
ModelOpt multiplies by it. gpt-oss stacks the experts in front, see `mxfp4`.
"""

import ml_dtypes
import numpy as np

from convert.formats.quantized_matrix import Box, QuantizedMatrix
from convert.quantized.bits import nibbles
from convert.quantized.grouped import grouped
from convert.quantized.method import Module

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*MAGNITUDES, *(-each for each in MAGNITUDES))
EXPONENT_BIAS, NOT_A_NUMBER = 127, 255
MX_GROUP, NV_GROUP = 32, 16
POWERS = np.ldexp(np.float32(1), np.arange(NOT_A_NUMBER) - EXPONENT_BIAS).astype(ml_dtypes.bfloat16)
LARGEST = np.array(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)


def open_mxfp4(module: Module, codes: str, scales: str) -> QuantizedMatrix:
    """A matrix of which the tensors have these suffixes."""
    inputs = _inputs(module, codes)
    outputs = module.axes(codes, 2)[0]
    module.expect(scales, (outputs, inputs // MX_GROUP), "uint8")
    check_powers(module, scales)
    return grouped(
        "mxfp4",
        inputs,
        "uint8",
        _values(module, codes),
        module.whole(scales),
        scale_of=powers_of_two,
        bits=4,
        table=E2M1,
        words=_words(module, codes),
    )


def open_nvfp4(module: Module, codes: str, scales: str, whole: str, *, divides: bool) -> QuantizedMatrix:
    """A matrix of which the tensors have these suffixes; `divides`: by the scale of the whole matrix."""
    inputs = _inputs(module, codes)
    outputs = module.axes(codes, 2)[0]
    module.expect(scales, (outputs, inputs // NV_GROUP), "float8_e4m3fn")
    if module.shape(whole) not in ((), (1,)):
        raise module.error(whole, f"has shape {list(module.shape(whole))}, must be one scale")
    factor = np.float32(module.scales(whole).reshape(()))

    def scale_of(stored: np.ndarray) -> np.ndarray:
        each = stored.astype(np.float32)
        return each / factor if divides else each * factor

    with np.errstate(over="ignore", divide="ignore"):
        if not factor > 0 or not np.isfinite(scale_of(LARGEST)):
            raise module.error(whole, f"must be positive, and scales with it finite; is {factor}")

    return grouped(
        "nvfp4",
        inputs,
        "uint8",
        _values(module, codes),
        module.scales(scales),
        scale_of=scale_of,
        bits=4,
        table=E2M1,
        words=_words(module, codes),
    )


def check_powers(module: Module, suffix: str) -> None:
    """Raise CheckpointError where a byte of the tensor stands for no number."""
    if (module.whole(suffix) == NOT_A_NUMBER).any():
        raise module.error(suffix, "has a scale that is not a number")


def powers_of_two(stored: np.ndarray) -> np.ndarray:
    """bf16, which loses nothing, of exponents as bytes."""
    made: np.ndarray = POWERS[stored]
    return made


def _inputs(module: Module, codes: str) -> int:
    outputs, octets = module.axes(codes, 2)
    module.expect(codes, (outputs, octets), "uint8")
    return 2 * octets


def _words(module: Module, codes: str) -> Box:
    def words(rows: slice, columns: slice) -> np.ndarray:
        return module.read(codes, rows, slice(4 * columns.start, 4 * columns.stop)).view(np.uint32)

    return words


def _values(module: Module, codes: str) -> Box:
    def values(rows: slice, columns: slice) -> np.ndarray:
        first = columns.start // 2
        both = nibbles(module.read(codes, rows, slice(first, -(-columns.stop // 2))))
        return both[:, columns.start - 2 * first :][:, : columns.stop - columns.start]

    return values
