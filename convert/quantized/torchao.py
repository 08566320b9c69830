"""torchao: the parts of its tensor classes as tensors of their own, in transformers' safetensors since torchao 0.15.

    Int8Tensor, IntxUnpackedToInt8Tensor    _weight_qdata i8 [out, in], _weight_zero_point i8 like the scales, or absent
    Float8Tensor                            _weight_qdata e4m3 [out, in]
        of both                             _weight_scale floats [out, groups], [1, 1] or [out/128, in/128]
    Int4Tensor    _weight_qdata i8 [out, in/2]: -8 to 7 in two's complement, the first of two in the low half
                  _weight_scale, _weight_zero_point floats [groups, out]: w = code · scale + zero point

Layouts: torchao's `quantization/quantize_/workflows`; which class a module has shows in its tensors. Rounded
activations (`act_quant_…`) keep their type here. The layouts of its kernels, such as Int4TilePackedTo4dTensor, MX and
NVFP4 tensors and scales of activations (`act_pre_scale`, of AWQ and SmoothQuant) are refused. So are the names of
torchao 0.14, which have a colon, by the reader of safetensors.
"""

from functools import partial

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import nibbles
from convert.quantized.fp8 import VALUES as E4M3
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

CODES, SCALE, ZERO = ("._weight_qdata", "._weight_scale", "._weight_zero_point")
TILED, PRE_SCALE = ("._weight_scale_and_zero", "._weight_act_pre_scale")
OF_ACTIVATIONS = ("._weight_act_quant_scale", "._weight_act_quant_zero_point")
PARTS = (CODES, SCALE, ZERO, TILED, PRE_SCALE, *OF_ACTIVATIONS)
BLOCK = 128  # rows and columns
SIGN = np.uint8(8)  # of four bits
SIGNS = np.uint32(0x88888888)


def torchao(config: Config) -> Method:
    """The method, whatever `config` says: each module's tensors say it too."""
    return Method("torchao", (CODES,), PARTS, _open)


def _open(module: Module) -> QuantizedMatrix:
    if module.has(TILED):
        raise module.error(CODES, "is in the order of a GPU's kernel, which is not supported: save in the plain format")
    if module.has(PRE_SCALE):
        raise module.error(PRE_SCALE, "is not supported: activations are not scaled here")
    if module.has(ZERO) and module.dtype(ZERO) in FLOATS:
        return _open_halves(module)
    return _open_whole(module)


def _open_whole(module: Module) -> QuantizedMatrix:
    """Integers or floats of eight bits."""
    outputs, inputs = module.axes(CODES, 2)
    module.expect(CODES, (outputs, inputs), "int8", E4M3)
    module.expect(SCALE, module.shape(SCALE), *FLOATS)
    dtype = module.dtype(CODES)
    scales, zeros = _of_rows(module, SCALE, module.scales(SCALE), (outputs, inputs)), None
    if module.has(ZERO):
        module.expect(ZERO, module.shape(SCALE), "int8")
        zeros = _of_rows(module, ZERO, module.whole(ZERO), (outputs, inputs))
        zeros = zeros if zeros.any() else None
    if zeros is not None and dtype != "int8":
        raise module.error(ZERO, f"is beside {dtype}, must be beside int8")
    size = _size(module, inputs, scales.shape[1])
    return grouped(f"torchao's {dtype}", inputs, dtype, partial(module.read, CODES), scales, zeros, size=size)


def _of_rows(module: Module, suffix: str, shared: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[out, groups] of what the whole matrix, parts of each row or square blocks share."""
    outputs, inputs = shape
    if shared.size == 1:
        return np.broadcast_to(shared.reshape(1, 1), (outputs, 1))
    if shared.ndim == 2 and len(shared) == outputs and shared.size:
        return shared
    if [BLOCK * n for n in shared.shape] == [outputs, inputs]:
        return np.repeat(shared, BLOCK, axis=0)
    wanted = f"one entry, {outputs} rows or blocks of {BLOCK}"
    raise module.error(suffix, f"has shape {list(shared.shape)}, must have {wanted}")


def _size(module: Module, inputs: int, groups: int) -> int:
    if inputs % groups:
        raise module.error(SCALE, f"has {groups} groups, which do not divide {inputs} inputs")
    return inputs // groups


def _open_halves(module: Module) -> QuantizedMatrix:
    """Integers of four bits with an offset, which is a zero point in units of the scale."""
    outputs, octets = module.axes(CODES, 2)
    groups, _ = module.axes(SCALE, 2)
    inputs = 2 * octets
    module.expect(CODES, (outputs, octets), "int8")
    for each in (SCALE, ZERO):
        module.expect(each, (groups, outputs), *FLOATS)
    size = _size(module, inputs, groups)
    scales, offsets = (module.scales(each).T for each in (SCALE, ZERO))
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = -offsets.astype(np.float32) / scales.astype(np.float32)
    if not np.isfinite(zeros).all():
        raise module.error(SCALE, "has a scale of 0, or next to it, beside a zero point")

    def values(rows: slice, columns: slice) -> np.ndarray:
        first = columns.start // 2
        stored = module.read(CODES, rows, slice(first, -(-columns.stop // 2))).view(np.uint8)
        codes = nibbles(stored)[:, columns.start - 2 * first :][:, : columns.stop - columns.start]
        return (codes ^ SIGN).view(np.int8) - SIGN.view(np.int8)

    def words(rows: slice, columns: slice) -> np.ndarray:
        return module.read(CODES, rows, slice(4 * columns.start, 4 * columns.stop)).view(np.uint32) ^ SIGNS

    found = zeros if zeros.any() else None
    return grouped("torchao's int4", inputs, "int8", values, scales, found, bits=4, size=size, words=words)
