"""bitsandbytes: eight bits per output channel, or four bits that number the entries of a table.

    8 bits   weight i8 [out, in]     SCB f32 [out], the largest magnitude of a row
    4 bits   weight u8 [⌈n/2⌉, 1] or in another type of the same bytes, over the flattened matrix, high nibble first;
             weight.absmax f32 [⌈n/block⌉]; weight.quant_map f32 [16]; weight.quant_state.… a JSON text as u8

With double quantisation absmax is u8 itself and numbers entries of `nested_quant_map`, scaled by blocks.
The library's 8-bit product keeps columns of large activations apart and rounds the others to 8 bits. Here activations
keep their type, so no column needs it.
"""

import json
import math
from functools import partial
from typing import Any

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import nibbles, turned
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

STATES = {f".weight.quant_state.bitsandbytes__{kind}": kind for kind in ("nf4", "fp4")}
TABLE, ABSMAX, NESTED = ".weight.quant_map", ".weight.absmax", (".weight.nested_absmax", ".weight.nested_quant_map")
FOUR_BITS = (*STATES, ".weight", TABLE, ABSMAX, *NESTED)
EIGHT_BITS = (".SCB", ".weight", ".weight_format")
STORAGE = ("uint8", "int8", *FLOATS)
LARGEST = 127
LIMIT = 3e38  # of a float32, nearly
ENTRIES = 16


def bitsandbytes(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: neither of the two numbers of bits is asked for, or both are.
    """
    four, eight = (config.flag(key, False) for key in ("load_in_4bit", "load_in_8bit"))
    if four == eight:
        raise config.error("load_in_4bit", "or load_in_8bit, and one of them alone, must be true")
    if four:
        return Method("bitsandbytes", tuple(STATES), FOUR_BITS, _open_four_bits)
    return Method("bitsandbytes", EIGHT_BITS[:1], EIGHT_BITS, _open_eight_bits)


def _open_eight_bits(module: Module) -> QuantizedMatrix:
    shape = module.axes(".weight", 2)
    module.expect(".weight", shape, "int8")
    module.expect(".SCB", shape[:1], "float32")
    if module.has(".weight_format") and module.whole(".weight_format").any():
        raise module.error(".weight_format", "is not 0: weights in the order of a kernel are not supported")
    scales = (module.scales(".SCB") / np.float32(LARGEST))[:, None]
    return grouped("int8", shape[1], "int8", partial(module.read, ".weight"), scales)


def _open_four_bits(module: Module) -> QuantizedMatrix:
    state = _state(module)
    outputs, inputs = state["shape"]
    block, count = state["blocksize"], outputs * inputs
    blocks = -(-count // block)
    _check_octets(module, -(-count // 2))
    module.expect(TABLE, (ENTRIES,), "float32")
    scales = _scales(module, state, blocks)  # [blocks]
    table = tuple(map(float, module.scales(TABLE)))
    size = math.gcd(block, inputs)  # blocks run over the ends of rows; a group of this size lies in one of them
    of_groups = scales if size == block else scales[np.arange(count // size) * size // block]

    def octets() -> np.ndarray:
        return module.whole(".weight").reshape(-1).view(np.uint8)

    def values(rows: slice, columns: slice) -> np.ndarray:
        first, last = rows.start * inputs, rows.stop * inputs
        codes = nibbles(turned(octets()[first // 2 : -(-last // 2)].reshape(1, -1)))
        return codes[0, first % 2 :][: last - first].reshape(-1, inputs)[:, columns]

    def words(rows: slice, columns: slice) -> np.ndarray:
        return turned(octets().reshape(outputs, -1)[rows, 4 * columns.start : 4 * columns.stop]).view(np.uint32)

    scales = of_groups.reshape(outputs, -1)
    return grouped(state["quant_type"], inputs, "uint8", values, scales, bits=4, table=table, words=words)


def _state(module: Module) -> dict[str, Any]:
    """The JSON object that describes the matrix; `quant_type`, `shape` and `blocksize` are checked."""
    suffix, *others = [suffix for suffix in STATES if module.has(suffix)]
    if others:
        raise module.error(others[0], f"is beside {module.name}{suffix}, must be alone")
    module.expect(suffix, module.axes(suffix, 1), "uint8")
    try:
        state: Any = json.loads(module.whole(suffix).tobytes())
        (outputs, inputs), block = state["shape"], state["blocksize"]
        valid = all(type(each) is int and 0 < each < 2**31 for each in (outputs, inputs, block))
        valid = valid and state["quant_type"] == STATES[suffix]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise module.error(suffix, f"does not describe a matrix ({type(error).__name__} {str(error)[:100]})") from error
    if not valid:
        raise module.error(suffix, f"does not describe a matrix: {str(state)[:200]}")
    return dict(state)


def _check_octets(module: Module, count: int) -> None:
    """Raise CheckpointError unless the packed codes are `count` bytes, of whatever type (`bnb_4bit_quant_storage`)."""
    if (dtype := module.dtype(".weight")) not in STORAGE:
        raise module.error(".weight", f"has type {dtype}, must have {' or '.join(STORAGE)}")
    stored = math.prod(module.shape(".weight")) * np.dtype(dtype).itemsize
    if stored != count:
        raise module.error(".weight", f"has {stored} bytes, must have {count}")


def _scales(module: Module, state: dict[str, Any], blocks: int) -> np.ndarray:
    """f32 [blocks]."""
    if "nested_blocksize" not in state:
        module.expect(ABSMAX, (blocks,), "float32")
        return module.scales(ABSMAX)
    size, offset = state["nested_blocksize"], state.get("nested_offset", math.nan)
    if type(size) is not int or not 0 < size < 2**31 or type(offset) not in (int, float) or not abs(offset) < LIMIT:
        raise module.error(ABSMAX, f"has nested blocks of {str(size)[:40]} and offset {str(offset)[:40]}")
    module.expect(ABSMAX, (blocks,), "uint8")
    module.expect(NESTED[0], (-(-blocks // size),), "float32")
    module.expect(NESTED[1], (256,), "float32")
    outer = module.scales(NESTED[0])[np.arange(blocks) // size]
    with np.errstate(over="ignore"):
        scales = module.scales(NESTED[1])[module.whole(ABSMAX)] * outer + np.float32(offset)
    if not np.isfinite(scales).all():
        raise module.error(NESTED[0], "makes a scale that is not finite")
    return scales
