"""Goldens of `convert/quantized`: small random matrices, quantised and restored by the libraries themselves.

    python make.py LIBRARY…      writes LIBRARY.safetensors beside this file

No library's code is here, and no library runs in the tests. Each was asked in an environment of its own, on a CPU, with
torch 2.13.0 and transformers 5.23.0; README.md lists the versions.

A file holds cases. A case has the tensors of one module as a checkpoint has them, `CASE.SUFFIX`, the matrix that the
library makes of them, `CASE.dense`, and in the file's metadata what a checkpoint's `quantization_config` would say.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.cpu_count = lambda: 8  # gptqmodel refuses fewer than three

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

Case = tuple[str, dict[str, Any], dict[str, torch.Tensor], torch.Tensor]  # name, configuration, tensors, matrix


def matrix(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """Weights of which each row and each part of a row has its own size and middle."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return (draw(outputs, inputs) + 0.5 * draw(outputs, 1)) * 0.05 * (1 + draw(1, inputs).abs())


def linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.clone()
    return layer


def ranges(weight: torch.Tensor, groups: torch.Tensor, bits: int, sym: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [out, groups], rounded to nearest."""
    largest = 2**bits - 1
    scales, zeros = [], []
    for group in range(int(groups.max()) + 1):
        part = weight[:, groups == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if sym:
            scale, zero = 2 * part.abs().amax(1) / largest, torch.full_like(low, 2 ** (bits - 1))
        else:
            scale = (high - low) / largest
            zero = (-low / scale).round()
        scales.append(scale.half().float())
        zeros.append(zero)
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def in_order(inputs: int, size: int) -> torch.Tensor:
    return torch.arange(inputs, dtype=torch.int32) // (size if size > 0 else inputs)


GPTQ = {  # bits, group size, symmetric, order of activation, shape
    "4bit": (4, 32, True, False, (32, 96)),
    "4bit_asym": (4, 32, False, False, (32, 96)),
    "4bit_act": (4, 32, True, True, (32, 96)),
    "4bit_asym_act": (4, 32, False, True, (64, 96)),
    "4bit_ragged": (4, 64, True, False, (32, 96)),
    "8bit_channel": (8, -1, True, False, (32, 96)),
    "8bit_asym": (8, 32, False, False, (32, 64)),
    "3bit": (3, 32, True, False, (32, 96)),
    "3bit_asym_act": (3, 32, False, True, (64, 96)),
    "2bit": (2, 32, False, False, (32, 96)),
    "2bit_channel": (2, -1, True, False, (32, 64)),
}


def gptq_config(bits: int, size: int, sym: bool, act: bool, layout: str = "gptq") -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "sym": sym,
        "desc_act": act,
        "checkpoint_format": layout,
    }


def gptq_inputs(name: str, bits: int, size: int, sym: bool, act: bool, shape: tuple[int, int]) -> Any:
    weight = matrix(*shape, seed=len(name))
    groups = in_order(shape[1], size)
    if act:
        groups = groups[torch.randperm(shape[1], generator=torch.Generator().manual_seed(1))]
    if not sym:
        weight[: shape[0] // 4] = weight[: shape[0] // 4].abs()  # whose zero points are 0
    return weight, *ranges(weight, groups, bits, sym), groups


def auto_gptq() -> Iterator[Case]:
    """Its `QuantLinear` in PyTorch, from its own file: the package as a whole cannot be imported any more."""
    (root,) = importlib.util.find_spec("auto_gptq").submodule_search_locations
    path = Path(root) / "nn_modules/qlinear/qlinear_cuda.py"
    spec = importlib.util.spec_from_file_location("qlinear_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, (bits, size, sym, act, shape) in GPTQ.items():
        if name in ("4bit", "4bit_asym", "3bit_asym_act", "2bit_channel", "4bit_ragged"):
            continue  # gptqmodel has them
        weight, scales, zeros, groups = gptq_inputs(name, bits, size, sym, act, shape)
        zeros = zeros.clamp(min=1)  # it stores a zero point of 0 wrong
        layer = module.QuantLinear(bits, size, shape[1], shape[0], bias=False, weight_dtype=torch.float32)
        layer.pack(linear(weight), scales, zeros, groups)
        dense = layer(torch.eye(shape[1])).T
        tensors = {each: getattr(layer, each) for each in ("qweight", "qzeros", "g_idx")}
        yield name, gptq_config(bits, size, sym, act), tensors | {"scales": layer.scales.half()}, dense


def gptqmodel() -> Iterator[Case]:
    """Both versions of its format; in the first, zero points of 0 borrow from their neighbours in a word."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module

    def packed(bits: int, size: int, sym: bool, act: bool, shape: tuple[int, int], name: str) -> Any:
        weight, scales, zeros, groups = gptq_inputs(name, bits, size, sym, act, shape)
        layer = TorchLinear(bits, size, sym, act, shape[1], shape[0], register_buffers=True, format=FORMAT.GPTQ_V2)
        layer.pack_original(linear(weight), scales, zeros, groups)
        layer.post_init()
        return layer

    def stored(layer: Any) -> dict[str, torch.Tensor]:
        return {each: getattr(layer, each).clone() for each in ("qweight", "qzeros", "scales", "g_idx")}

    ragged = {"4bit_odd": (4, 32, False, False, (20, 84)), "8bit_odd": (8, 32, True, False, (18, 70))}
    for name, settings in (GPTQ | ragged).items():
        bits, size, sym, act, _ = settings
        layer = packed(*settings, name)
        tensors = stored(layer)
        dense = layer.dequantize_weight().T.contiguous()
        if not sym:
            yield f"{name}_v2", gptq_config(bits, size, sym, act, "gptq_v2"), tensors, dense
        convert_gptq_v2_to_v1_format_module(layer, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        tensors = stored(layer)
        convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)  # as it loads such a file
        assert torch.equal(dense, layer.dequantize_weight().T), name
        yield f"{name}_v1", gptq_config(bits, size, sym, act), tensors, dense
    layer = packed(4, 32, True, False, (32, 96), "4bit")
    tensors = stored(layer)
    del tensors["g_idx"]
    yield "4bit_no_g_idx", gptq_config(4, 32, True, False, "gptq_v2"), tensors, layer.dequantize_weight().T


def auto_round() -> Iterator[Case]:
    """Its two `QuantLinear` in PyTorch: zero points less one, and as they are."""
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    for name, module, packing in (
        ("less_one", qlinear_torch_zp, "auto_round:auto_gptq"),
        ("plain", qlinear_torch, "auto_round"),
    ):
        for bits in (4, 3):
            weight, scales, zeros, _ = gptq_inputs("4bit", bits, 32, False, False, (32, 64))
            if module is qlinear_torch_zp:
                zeros = zeros.clamp(min=1)  # it stores a zero point of 0 as 1
            layer = module.QuantLinear(bits, 32, 64, 32, bias=False)
            layer.device = torch.device("cpu")  # which `pack` of one of them asks for and nothing sets
            layer.pack(linear(weight), scales, zeros, None, device=torch.device("cpu"))
            tensors = {each: getattr(layer, each).clone() for each in ("qweight", "qzeros", "scales")}
            layer.scales = layer.scales.float()
            config = {"quant_method": "auto-round", "bits": bits, "group_size": 32, "sym": False, "data_type": "int"}
            yield f"{bits}bit_{name}", config | {"packing_format": packing}, tensors, layer(torch.eye(64)).T


def autoawq() -> Iterator[Case]:
    """`WQLinear_GEMM`, and `dequantize_gemm` of its packing_utils. `WQLinear_GEMV` packs what that restored: it has no
    code that restores on a CPU.
    """
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV
    from awq.utils.packing_utils import dequantize_gemm

    for name, size, shape, layout in (
        ("g32", 32, (32, 96), "gemm"),
        ("g48", 48, (64, 48), "gemm"),
        ("channel", -1, (32, 40), "gemm"),
        ("gemv_g32", 32, (32, 96), "gemv"),
        ("gemv_g64", 64, (32, 192), "gemv"),
        ("gemv_g128", 128, (32, 256), "gemv"),
    ):
        weight = matrix(*shape, seed=size + 2)
        weight[:8] = weight[:8].abs()  # whose zero points are 0
        size_here = size if size > 0 else shape[1]
        scales, zeros = ranges(weight, in_order(shape[1], size), 4, False)
        layer = WQLinear_GEMM.from_linear(linear(weight), 4, size_here, scales=scales.T, zeros=zeros.T)
        dense = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, size_here).T
        if layout == "gemv":
            layer = WQLinear_GEMV.from_linear(linear(dense.float()), 4, size, scales=scales, zeros=zeros)
        tensors = {each: getattr(layer, each) for each in ("qweight", "qzeros", "scales")}
        config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": layout}
        yield name, config, tensors, dense


def bitsandbytes() -> Iterator[Case]:
    """`Linear4bit` and `Linear8bitLt`, whose state dictionaries are what it stores."""
    import bitsandbytes as bnb
    from bitsandbytes import functional

    def config(bits: int, **settings: Any) -> dict[str, Any]:
        four = bits == 4
        return {"quant_method": "bitsandbytes", "load_in_4bit": four, "load_in_8bit": not four, **settings}

    cases = {  # type, double, storage, of the floats, block, shape
        "nf4": ("nf4", False, torch.uint8, torch.float32, 64, (32, 128)),
        "nf4_over_rows": ("nf4", False, torch.uint8, torch.float32, 64, (24, 80)),
        "nf4_odd": ("nf4", False, torch.uint8, torch.float32, 64, (7, 33)),
        "nf4_double": ("nf4", True, torch.uint8, torch.float32, 32, (48, 192)),
        "nf4_double_bf16": ("nf4", True, torch.bfloat16, torch.bfloat16, 64, (32, 96)),
        "nf4_f16": ("nf4", False, torch.float16, torch.float16, 64, (16, 64)),
        "nf4_f32_storage": ("nf4", False, torch.float32, torch.float32, 64, (16, 64)),
        "fp4": ("fp4", False, torch.uint8, torch.float32, 64, (16, 128)),
        "fp4_double": ("fp4", True, torch.uint8, torch.float32, 128, (16, 192)),
    }
    for name, (kind, double, storage, floats, block, shape) in cases.items():
        weight = matrix(*shape, seed=len(name)).to(floats)
        codes, state = functional.quantize_4bit(
            weight, blocksize=block, compress_statistics=double, quant_type=kind, quant_storage=storage
        )
        tensors = {"weight": codes} | {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        quantization = config(4, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double)
        quantization["bnb_4bit_quant_storage"] = str(storage).removeprefix("torch.")
        state.shape = torch.Size(
            [shape[0] * shape[1]]
        )  # in rows, its CPU kernel is wrong where a block runs over one's end
        yield name, quantization, tensors, functional.dequantize_4bit(codes, state).reshape(shape)

    layer = bnb.nn.Linear8bitLt(80, 24, bias=False, has_fp16_weights=False)
    layer.weight = bnb.nn.Int8Params(matrix(24, 80).half(), has_fp16_weights=False, requires_grad=False)
    layer = layer.to("cpu")
    if layer.weight.dtype != torch.int8:
        layer(torch.zeros(1, 80, dtype=torch.float16))
    tensors = dict(layer.state_dict())
    assert tensors["weight"].dtype == torch.int8
    yield "int8", config(8), tensors, functional.int8_vectorwise_dequant(tensors["weight"], tensors["SCB"])


def hqq() -> Iterator[Case]:
    """`HQQLinear`; in f16 it rounds twice."""
    from hqq.core.quantize import HQQLinear, hqq_base_quant_config

    for bits, size, floats, shape in (
        (8, 64, torch.float32, (16, 128)),
        (4, 32, torch.float32, (24, 96)),
        (4, 64, torch.float16, (32, 128)),
        (4, None, torch.float32, (16, 56)),
        (2, 16, torch.float32, (16, 80)),
        (2, 32, torch.bfloat16, (16, 64)),
        (1, 8, torch.float32, (16, 48)),
        (3, 32, torch.float32, (24, 96)),
        (3, 16, torch.bfloat16, (16, 80)),
    ):
        settings = hqq_base_quant_config(nbits=bits, group_size=size, axis=1)
        layer = HQQLinear(linear(matrix(*shape, seed=bits)), settings, compute_dtype=floats, device="cpu")
        config = {"quant_method": "hqq", "quant_config": settings}
        tensors = {key: value for key, value in layer.state_dict().items() if value is not None}
        name = f"{bits}bit_{size or 'channel'}_{str(floats).removeprefix('torch.')}"
        yield name, config, tensors, layer.dequantize()


def compressed_tensors() -> Iterator[Case]:
    """Each of its compressors: `compress` writes, `decompress` restores."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    def args(bits: int, kind: str, strategy: str, **more: Any) -> Any:
        return QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, **more)

    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    packed, plain, floats = "pack-quantized", "int-quantized", "float-quantized"
    nvfp4 = args(4, "float", "tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
    mxfp4, mxfp8 = (args(bits, "float", "group", group_size=32, scale_dtype=torch.uint8) for bits in (4, 8))
    cases = {  # layout, arguments, type of the scales, shape
        "w4_group": (packed, args(4, "int", "group", group_size=32), f16, (24, 96)),
        "w4_group_bf16": (packed, args(4, "int", "group", group_size=16), bf16, (16, 48)),
        "w4_group_asym": (packed, args(4, "int", "group", group_size=32, symmetric=False), f32, (20, 96)),
        "w4_channel": (packed, args(4, "int", "channel"), f32, (24, 44)),
        "w4_channel_asym": (packed, args(4, "int", "channel", symmetric=False), f16, (18, 44)),
        "w4_tensor": (packed, args(4, "int", "tensor"), f32, (16, 40)),
        "w8_group": (packed, args(8, "int", "group", group_size=32), f32, (16, 64)),
        "w8_channel_asym": (packed, args(8, "int", "channel", symmetric=False), f32, (18, 42)),
        "w3_group": (packed, args(3, "int", "group", group_size=20), f32, (12, 60)),
        "w3_group_asym": (packed, args(3, "int", "group", group_size=32, symmetric=False), f32, (20, 96)),
        "w2_group": (packed, args(2, "int", "group", group_size=32), f16, (16, 64)),
        "int8_channel": (plain, args(8, "int", "channel"), f32, (24, 40)),
        "int8_channel_asym": (plain, args(8, "int", "channel", symmetric=False), bf16, (16, 40)),
        "int8_tensor": (plain, args(8, "int", "tensor"), f32, (16, 40)),
        "int8_tensor_asym": (plain, args(8, "int", "tensor", symmetric=False), f32, (16, 40)),
        "int8_group": (plain, args(8, "int", "group", group_size=16), f32, (16, 48)),
        "int4_group": (plain, args(4, "int", "group", group_size=16), f32, (16, 48)),
        "int4_channel_asym": (plain, args(4, "int", "channel", symmetric=False), f32, (16, 40)),
        "fp8_tensor": (floats, args(8, "float", "tensor"), f32, (16, 40)),
        "fp8_channel": (floats, args(8, "float", "channel"), bf16, (24, 40)),
        "fp8_group": (floats, args(8, "float", "group", group_size=16), f32, (16, 48)),
        "fp8_block": (floats, args(8, "float", "block", block_structure=[16, 32]), f32, (32, 64)),
        "fp8_block_ragged": (floats, args(8, "float", "block", block_structure=[16, 32]), f32, (40, 80)),
        "naive_int8": ("naive-quantized", args(8, "int", "channel"), f32, (16, 40)),
        "naive_fp8": ("naive-quantized", args(8, "float", "tensor"), f32, (16, 40)),
        "nvfp4": ("nvfp4-pack-quantized", nvfp4, f32, (16, 96)),
        "mxfp4": ("mxfp4-pack-quantized", mxfp4, f32, (16, 96)),
        "mxfp8": ("mxfp8-quantized", mxfp8, f32, (16, 96)),
    }

    def parts(weight: torch.Tensor, settings: Any) -> torch.Tensor:
        """[out or its blocks, groups, what shares a scale]."""
        outputs, inputs = weight.shape
        match settings.strategy:
            case "tensor":
                return weight.reshape(1, 1, -1)
            case "channel":
                return weight.reshape(outputs, 1, inputs)
            case "block":
                tall, wide = settings.block_structure
                padded = torch.nn.functional.pad(weight, (0, -inputs % wide, 0, -outputs % tall))
                blocks = padded.reshape(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide)
                return blocks.transpose(1, 2).flatten(2)
        return weight.reshape(outputs, -1, settings.group_size)

    for name, (layout, settings, kind, shape) in cases.items():
        weight = matrix(*shape, seed=len(name))
        scheme = QuantizationScheme(targets=["Linear"], weights=settings, format=layout)
        state = {"weight": weight.to(kind)}
        whole = None
        if settings.strategy == "tensor_group":
            whole = state["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
        shared = parts(weight, settings)
        scales, zeros = calculate_qparams(shared.amin(-1), shared.amax(-1), settings, whole)
        if settings.strategy == "tensor":
            scales, zeros = scales.reshape(1), zeros.reshape(1)
        scales = scales.to(kind)
        state |= {"weight_scale": scales, "weight_zero_point": zeros.to(torch.int8)}
        compressor = BaseCompressor.get_value_from_registry(layout)
        stored = {key: value.contiguous() for key, value in compressor.compress(state, scheme).items()}
        restored = compressor.decompress(stored, scheme)["weight"]
        config = {
            "quant_method": "compressed-tensors",
            "format": layout,
            "quantization_status": "compressed",
            "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
            "ignore": ["lm_head"],
        }
        yield name, config, stored, restored


def compressed_tensors_0_9() -> Iterator[Case]:
    """The library as it was while it still had groups in order of activation."""
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams

    for name, seed in (("w4_act", 9), ("w4_act_again", 10)):  # zero points it cannot restore
        weight = matrix(24, 96, seed=seed)
        settings = QuantizationArgs(num_bits=4, strategy="group", group_size=32, actorder="group")
        order = in_order(96, 32)[torch.randperm(96, generator=torch.Generator().manual_seed(2))]
        shared = weight[:, torch.argsort(order, stable=True)].reshape(24, 3, 32)
        scales, zeros = calculate_qparams(shared.amin(-1), shared.amax(-1), settings)
        compressor = PackedQuantizationCompressor()
        zeros = zeros.to(torch.int8)
        stored = compressor.compress_weight(
            weight, scales, quantization_args=settings, zero_point=zeros, g_idx=order, device="cpu"
        )
        stored |= {"weight_scale": scales, "weight_g_idx": order}
        restored = compressor.decompress_weight(dict(stored), settings)
        config = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(settings.model_dump_json())}},
        }
        yield name, config, {key: value.contiguous() for key, value in stored.items()}, restored


def modelopt() -> Iterator[Case]:
    """Its quantised tensors, under the names of its export."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor

    weight = matrix(24, 96)
    held, scales, whole = NVFP4QTensor.quantize(weight.clone(), 16)
    dense = held.dequantize(torch.float32, scale=scales, double_scale=whole, block_sizes={-1: 16})
    tensors = {"weight": held._quantized_data, "weight_scale": scales, "weight_scale_2": whole}
    tensors["input_scale"] = torch.tensor(0.01)
    yield "nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, tensors, dense
    held, scale = FP8QTensor.quantize(weight)
    scale = scale.reshape(())
    tensors = {"weight": held._quantized_data, "weight_scale": scale, "input_scale": torch.tensor(0.01)}
    yield "fp8", {"quant_method": "modelopt", "quant_algo": "FP8"}, tensors, held.dequantize(torch.float32, scale=scale)
    held, scales = MXFP8QTensor.quantize(weight)
    dense = held.dequantize(torch.float32, scale=scales)
    config = {"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32}
    yield "mxfp8", config, {"weight": held._quantized_data, "weight_scale": scales}, dense


def gpt_oss() -> Iterator[Case]:
    """Experts in MXFP4, of random bytes: each is a number. transformers computes powers of two in bf16, exactly."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 128, (3, 10, 2), generator=generator, dtype=torch.uint8)
    dense = convert_moe_packed_tensors(blocks, scales)
    yield "experts", {"quant_method": "mxfp4"}, {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales}, dense


def torchao() -> Iterator[Case]:
    """Its tensor classes, flattened as transformers stores them. Its integers of four bits are packed by mslk, of which
    the part in Python is enough (`MSLK_PYTHON_ONLY=1`), and restored by what its own GPTQ has for that.
    """
    from mslk.quantize.shuffle import int4_row_quantize_zp
    from torchao.prototype.gptq.api import _int4_row_dequantize_zp
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8Tensor,
        Int4Tensor,
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8Tensor,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        MappingType,
        PerAxis,
        PerBlock,
        PerGroup,
        PerRow,
        PerTensor,
        quantize_,
    )
    from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs

    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    config = {"quant_method": "torchao", "modules_to_not_convert": None, "quant_type": {"default": {}}}

    def stored(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        flat, _ = flatten_tensor_state_dict({"linear.weight": weight})
        return {name.removeprefix("linear."): each for name, each in flat.items()}

    intx, dynamic = IntxWeightOnlyConfig, Int8DynamicActivationIntxWeightConfig
    for name, (settings, kind, shape) in {
        "int8_rows": (Int8WeightOnlyConfig(), f32, (24, 40)),
        "int8_rows_bf16": (Int8WeightOnlyConfig(), bf16, (16, 40)),
        "int8_tensor": (Int8WeightOnlyConfig(granularity=PerTensor()), f32, (16, 40)),
        "int8_group": (Int8WeightOnlyConfig(granularity=PerGroup(16)), f32, (24, 48)),
        "int8_dynamic": (Int8DynamicActivationInt8WeightConfig(), bf16, (16, 48)),
        "int4_unpacked": (intx(torch.int4, PerGroup(32)), f32, (24, 96)),
        "int3_unpacked_bf16": (intx(torch.int3, PerGroup(16)), bf16, (16, 48)),
        "int8_axis": (intx(torch.int8, PerAxis(0)), f16, (16, 40)),
        "int4_dynamic": (dynamic(torch.int4, PerGroup(32)), bf16, (24, 96)),
        "int4_dynamic_asym": (dynamic(torch.int4, PerGroup(32), MappingType.ASYMMETRIC), f32, (24, 96)),
        "int8_dynamic_asym": (dynamic(torch.int8, PerAxis(0), MappingType.ASYMMETRIC), f32, (24, 40)),
    }.items():
        layer = linear(matrix(*shape, seed=len(name))).to(kind)
        quantize_(layer, settings)
        yield name, config, stored(layer.weight.data), layer.weight.dequantize()

    weight = matrix(24, 48, seed=1)
    held = Int8Tensor.from_hp(weight, PerRow(), mapping_type=MappingType.ASYMMETRIC)
    yield "int8_rows_asym", config, stored(held), held.dequantize()

    activations = QuantizeTensorToFloat8Kwargs()
    for name, granularity, kind, shape, more in (
        ("fp8_rows", PerRow(), f32, (24, 40), {}),
        ("fp8_rows_bf16", PerRow(), bf16, (16, 40), {"act_quant_kwargs": activations}),
        ("fp8_tensor", PerTensor(), f32, (16, 40), {"act_quant_kwargs": activations}),
        ("fp8_blocks", PerBlock([128, 128]), bf16, (256, 128), {"act_quant_kwargs": activations}),
        ("fp8_groups", PerGroup(16), f32, (24, 48), {}),
    ):
        held = Float8Tensor.from_hp(matrix(*shape, seed=len(name)).to(kind), granularity=granularity, **more)
        yield name, config, stored(held), held.dequantize()

    for name, size, kind, shape in (
        ("int4", 32, f32, (24, 96)),
        ("int4_bf16", 64, bf16, (16, 128)),
        ("int4_f16", 12, f16, (10, 60)),
    ):
        weight = matrix(*shape, seed=size).to(kind)
        held = Int4Tensor.from_hp(weight, [1, size])
        codes, _, _ = int4_row_quantize_zp(weight, size)
        yield (
            name,
            config,
            stored(held),
            _int4_row_dequantize_zp(codes, held.scale.float(), held.zero_point.float(), size),
        )


def transformers() -> Iterator[Case]:
    """Its own FP8 in blocks: `Fp8Quantize` and `Fp8Dequantize`."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    for name, blocks, shape in (
        ("fp8_block", (16, 32), (48, 96)),
        ("fp8_block_tall", (32, 8), (64, 40)),
        ("fp8_tensor", None, (16, 40)),
    ):
        settings = FineGrainedFP8Config(weight_block_size=blocks)
        quantizer = SimpleNamespace(quantization_config=settings)
        weight = matrix(*shape, seed=shape[1])
        stored = Fp8Quantize(quantizer).convert({"linear.weight": weight})
        tensors = {key.removeprefix("linear."): value for key, value in stored.items()}
        restored = Fp8Dequantize(quantizer).convert(dict(tensors))["weight"]
        config = {"quant_method": "fp8", "weight_block_size": blocks and list(blocks), "activation_scheme": "dynamic"}
        yield name, config, tensors, restored


LIBRARIES: dict[str, tuple[Callable[[], Iterator[Case]], str]] = {  # with its name on PyPI
    "auto_gptq": (auto_gptq, "auto-gptq"),
    "auto_round": (auto_round, "auto-round"),
    "autoawq": (autoawq, "autoawq"),
    "bitsandbytes": (bitsandbytes, "bitsandbytes"),
    "compressed_tensors": (compressed_tensors, "compressed-tensors"),
    "compressed_tensors_0_9": (compressed_tensors_0_9, "compressed-tensors"),
    "gpt_oss": (gpt_oss, "transformers"),
    "gptqmodel": (gptqmodel, "gptqmodel"),
    "hqq": (hqq, "hqq"),
    "modelopt": (modelopt, "nvidia-modelopt"),
    "torchao": (torchao, "torchao"),
    "transformers": (transformers, "transformers"),
}


@torch.no_grad()
def write(library: str) -> None:
    cases, package = LIBRARIES[library]
    tensors: dict[str, torch.Tensor] = {}
    configs: dict[str, Any] = {}
    for name, config, stored, dense in cases():
        configs[name] = config
        tensors |= {f"{name}.{suffix}": value.detach().contiguous().clone() for suffix, value in stored.items()}
        tensors[f"{name}.dense"] = dense.detach().contiguous().clone()
    path = Path(__file__).with_name(f"{library}.safetensors")
    metadata = {"library": f"{package} {version(package)}", "configs": json.dumps(configs, default=str)}
    save_file(tensors, path, metadata)
    print(library, version(package), len(configs), "cases", path.stat().st_size, "bytes")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        write(each)
