"""NVIDIA's ModelOpt: its algorithms whose files are read, whether activations are rounded or not.

FP8, FP8_PER_CHANNEL_PER_TOKEN   see `fp8`
MXFP8                            see `fp8`
NVFP4, W4A16_NVFP4               see `fp4`; weight_scale_2 is the scale of the whole matrix
MIXED_PRECISION                  each module in one of these, as `quantized_layers` says and its tensors tell
"""

from functools import partial

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.fp4 import open_nvfp4
from convert.quantized.fp8 import fp8, open_mxfp8
from convert.quantized.method import Method, Module

WEIGHT, SCALE, WHOLE = ".weight", ".weight_scale", ".weight_scale_2"
PARTS = (WEIGHT, SCALE, WHOLE, ".input_scale")
FP8S, NVFP4S, MIXED = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), ("NVFP4", "W4A16_NVFP4"), "MIXED_PRECISION"
ALGORITHMS = (*FP8S, "MXFP8", *NVFP4S)


def modelopt(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: another algorithm, of the whole or of a module.
    """
    algorithm = config.text("quant_algo").upper()
    if algorithm in FP8S:
        return fp8(config)
    if algorithm in NVFP4S:
        return Method("modelopt", (WHOLE,), PARTS, _open_nvfp4)
    if algorithm == MIXED:
        _check_modules(config.section("quantized_layers") or Config({}, config.where))
    elif algorithm not in ALGORITHMS:
        raise config.error("quant_algo", f"must be one of {', '.join((*ALGORITHMS, MIXED))}")
    return Method("modelopt", (SCALE,), PARTS, partial(_open, of_fp8=fp8(config)))


def _check_modules(modules: Config) -> None:
    for name in modules.values:
        module = modules.section(name)
        if module is None or module.text("quant_algo") not in ALGORITHMS:
            raise modules.error(name, f"must have a quant_algo of {', '.join(ALGORITHMS)}")


def _open(module: Module, *, of_fp8: Method) -> QuantizedMatrix:
    if module.has(WHOLE):
        return _open_nvfp4(module)
    return open_mxfp8(module) if module.dtype(SCALE) == "uint8" else of_fp8.open(module)


def _open_nvfp4(module: Module) -> QuantizedMatrix:
    return open_nvfp4(module, WEIGHT, SCALE, WHOLE, divides=False)
