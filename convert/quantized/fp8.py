"""Floats of 8 bits (e4m3) with scales for the whole matrix, for each output channel, or for each block of it.

    weight  e4m3 [out, in]
    weight_scale      floats: one, [out] or [out, 1]                  AutoFP8, vLLM, fbgemm, ModelOpt
    weight_scale_inv  floats [⌈out/b⌉, ⌈in/b⌉], multiplied despite its name                    DeepSeek, Qwen3
    weight_scale_inv  one float, likewise multiplied                                           Mistral
    weight_scale_inv  one, [out] or blocks, divided by: `weight_scale_semantics` is "inverse"  GPTQModel
    weight_scale      u8 [out, in/32]: powers of two, stored as exponent + 127                 MXFP8
    input_scale, activation_scale   one float, where activations were quantised with a fixed scale

Scales of blocks may be powers of two, in a byte each (e8m0: `scale_fmt` is "ue8m0"). Activations keep their type here,
so scales of inputs are not used.
"""

from collections.abc import Sequence
from functools import partial

import ml_dtypes
import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.fp4 import MX_GROUP, check_powers, powers_of_two
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

VALUES = "float8_e4m3fn"
CHANNEL, BLOCK = ".weight_scale", ".weight_scale_inv"
POWERS = "float8_e8m0fnu"
MEANING, INVERSE = "weight_scale_semantics", "inverse"
PARTS = (".weight", CHANNEL, BLOCK, ".input_scale", ".input_scale_ub", ".activation_scale")


def fp8(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: blocks that are no pair of sizes, another type of floats, or another meaning of their scales.
    """
    if (meaning := config.get(MEANING)) not in (None, INVERSE):
        raise config.error(MEANING, f"must be {INVERSE}")
    if config.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise config.error("fmt", "must be e4m3")
    blocks, divides = config.get("weight_block_size"), meaning == INVERSE
    if blocks is None:
        return Method("fp8", (CHANNEL, BLOCK), PARTS, partial(_open_channels, divides=divides))
    if not isinstance(blocks, list) or len(blocks) != 2 or any(type(each) is not int or each < 1 for each in blocks):
        raise config.error("weight_block_size", "must be two positive integers")
    return Method("fp8", (BLOCK,), PARTS, partial(open_blocks, suffix=BLOCK, blocks=blocks, divides=divides))


def _open_channels(module: Module, *, divides: bool) -> QuantizedMatrix:
    """A matrix with one scale, or one for each output channel."""
    outputs, inputs = _shape(module)
    suffix = CHANNEL if module.has(CHANNEL) else BLOCK
    shape = module.shape(suffix)
    if shape not in ((), (1,), (1, 1), (outputs,), (outputs, 1)):
        raise module.error(suffix, f"has shape {list(shape)}, must have one scale or {outputs}")
    module.expect(suffix, shape, *FLOATS)
    scales = np.broadcast_to(_scales(module, suffix, divides).reshape(-1, 1), (outputs, 1))
    return grouped("fp8", inputs, VALUES, partial(module.read, ".weight"), scales)


def open_blocks(module: Module, *, suffix: str, blocks: Sequence[int], divides: bool = False) -> QuantizedMatrix:
    """A matrix with a scale for each block of `blocks` outputs and inputs; `divides`: by what tensor `suffix` has."""
    (outputs, inputs), (tall, wide) = _shape(module), blocks
    module.expect(suffix, (-(-outputs // tall), -(-inputs // wide)), *FLOATS, POWERS)
    scales = np.repeat(_scales(module, suffix, divides), tall, axis=0)[:outputs]
    return grouped("fp8 in blocks", inputs, VALUES, partial(module.read, ".weight"), scales, size=wide)


def open_mxfp8(module: Module) -> QuantizedMatrix:
    """A matrix with a power of two for each 32 inputs, as OCP Microscaling 1.0 has it."""
    outputs, inputs = _shape(module)
    if inputs % MX_GROUP:
        raise module.error(".weight", f"has {inputs} inputs, which groups of {MX_GROUP} do not divide")
    module.expect(CHANNEL, (outputs, inputs // MX_GROUP), "uint8")
    check_powers(module, CHANNEL)
    read = partial(module.read, ".weight")
    return grouped("mxfp8", inputs, VALUES, read, module.whole(CHANNEL), scale_of=powers_of_two)


def _scales(module: Module, suffix: str, divides: bool) -> np.ndarray:
    """What a weight is multiplied by. Raises CheckpointError where that is not finite."""
    stored = module.scales(suffix)
    if stored.dtype == POWERS:
        stored = stored.astype(ml_dtypes.bfloat16)  # which loses nothing
    if not divides:
        return stored
    with np.errstate(over="ignore", divide="ignore"):
        scales = np.float32(1) / stored.astype(np.float32)
    if not np.isfinite(scales).all():
        raise module.error(suffix, "has a scale of 0, or next to it, which weights are divided by")
    return scales


def _shape(module: Module) -> tuple[int, ...]:
    shape = module.axes(".weight", 2)
    module.expect(".weight", shape, VALUES)
    return shape
