"""From `quantization_config` to the method that it names."""

import re
from collections.abc import Callable, Mapping

from convert.config.config import Config
from convert.config.quantization import KEY, METHOD
from convert.quantized.awq import awq
from convert.quantized.bitsandbytes import bitsandbytes
from convert.quantized.compressed_tensors import compressed_tensors, groups_of_weights
from convert.quantized.eetq import eetq
from convert.quantized.fp8 import fp8
from convert.quantized.gptq import gptq
from convert.quantized.hqq import hqq
from convert.quantized.method import Method
from convert.quantized.modelopt import modelopt
from convert.quantized.mxfp4 import mxfp4
from convert.quantized.torchao import torchao

KERNEL = re.compile(":(exllamav2|tritonv2|cuda|gemm)$")  # AutoRound's, of those that read the general layout
MLX = "quantization"
DEFAULTS = {"load_in_8bit": "bitsandbytes", "load_in_4bit": "bitsandbytes", "quant_algo": "modelopt"}  # by a key
ROTATIONS = ("rotation_config", "spinquant_config")


def auto_round(config: Config) -> Method:
    """AutoRound: its files have the layout of another method, of GPTQ's first version where they do not say which.

    Before 0.5 they named it by the kernel that reads it, as "auto_round:gptq:exllamav2".
    """
    key = config.spelled("packing_format", "backend")
    if config.text("data_type", "int") != "int":
        raise config.error("data_type", "must be int")
    if rotated := next((each for each in ROTATIONS if config.get(each)), None):
        raise config.error(rotated, "is not supported: activations are not rotated here")
    match KERNEL.sub("", config.text(key, "auto_round:auto_gptq")).removeprefix("auto_round:"):
        case "auto_gptq" | "gptq":
            return gptq(config)
        case "auto_round" | "gptqmodel":
            return gptq(Config({**config.values, "checkpoint_format": "gptq_v2"}, config.where))
        case "auto_awq" | "awq":
            return awq(config)
    raise config.error(key, "must be that of GPTQ or AWQ: auto_round, auto_round:auto_gptq or auto_round:auto_awq")


METHODS: Mapping[str, Callable[[Config], Method]] = {
    "auto-round": auto_round,
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "eetq": eetq,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "hqq": hqq,
    "intel/auto-round": auto_round,
    "modelopt": modelopt,
    "mxfp4": mxfp4,
    "torchao": torchao,
}


def _plain(name: str) -> str:
    """A method's name as none is written: tools differ in capitals, and in hyphens or underscores."""
    return name.lower().replace("-", "_")


SPELLINGS = {_plain(name): read for name, read in METHODS.items()}


def method_of(config: Config) -> Method | None:
    """The method by which a checkpoint's weights are quantised; None where they are not.

    Raises:
        CheckpointError: a method that is not supported, or not as it is set.
    """
    _refuse_mlx(config)
    quantization = config.section(KEY)
    if quantization is None or _only_of_cache(quantization) or _only_pruned(quantization):
        return None
    default = next((DEFAULTS[key] for key in DEFAULTS if key in quantization.values), None)
    read = SPELLINGS.get(_plain(quantization.text(METHOD, default)))
    if read is None:
        hint = "name a checkpoint in one of these, or the model in floats, with --quantize"
        raise quantization.error(METHOD, f"must be one of {', '.join(METHODS)}: {hint}")
    return read(quantization)


def method_name(config: Config) -> str | None:
    """The name of that method, as options have it."""
    method = method_of(config)
    return method.name if method else None


def _refuse_mlx(config: Config) -> None:
    """Its files have no name of a method, but groups under a key of their own."""
    settings, described = config.get(MLX), config.get(KEY)
    named = isinstance(described, dict) and METHOD in described
    if isinstance(settings, dict) and "group_size" in settings and not named:
        raise config.error(MLX, "is that of MLX, which is not supported: name the model that it was made of")


def _only_pruned(quantization: Config) -> bool:
    """Whether weights are floats of which many are 0: compressed-tensors then has no groups, and stores them all."""
    if not _names(quantization, "compressed_tensors") or groups_of_weights(quantization):
        return False
    sparsity = quantization.section("sparsity_config")
    return sparsity is not None and sparsity.get("format") == "dense"


def _names(quantization: Config, *methods: str) -> bool:
    return _plain(str(quantization.get(METHOD))) in methods


def _only_of_cache(quantization: Config) -> bool:
    """Whether only the cache is quantised: compressed-tensors then has no groups of weights, ModelOpt no algorithm."""
    if not _names(quantization, "compressed_tensors", "modelopt"):
        return False
    if quantization.get("quant_algo") or groups_of_weights(quantization):
        return False
    if (scheme := quantization.section("kv_cache_scheme")) is None:
        return quantization.get("kv_cache_quant_algo") == "FP8"
    return (scheme.get("num_bits"), scheme.get("type")) == (8, "float") and scheme.get("symmetric") is not False
