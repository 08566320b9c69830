"""Tiny checkpoints in every quantised format: our own writers, and the floats that the written numbers stand for.

A writer rounds to nearest and packs; it multiplies codes and scales out before it packs them. So what it says of the
weights owes nothing to the reader. That the layouts are those of the libraries is shown in `tests/convert/quantized`.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from convert.formats.safetensors import encode_header

GROUP = 16
E4M3 = ml_dtypes.float8_e4m3fn
LARGEST_E4M3 = 448
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array(
    [
        *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ],
    np.float32,
)  # Dettmers et al., QLoRA, appendix E
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
FP4 = np.concatenate([FP4, -FP4])
NOT_QUANTISED = r"embed|wte|wpe|lm_head|norm|ln_|\.gate\.weight"


@dataclass(frozen=True)
class Written:
    """Of one module: its tensors by their suffixes, and its matrix f32 [out, in]."""

    tensors: dict[str, np.ndarray]
    dense: np.ndarray


@dataclass(frozen=True)
class Format:
    config: dict[str, Any]  # `quantization_config`
    write: Callable[[np.ndarray], Written]  # of f32 [out, in]
    of_modules: Mapping[str, Callable[[np.ndarray], Written]] = field(default_factory=dict)  # by part of their names
    kept: str = "$^"  # names of modules that stay in floats match it

    def of(self, module: str) -> Callable[[np.ndarray], Written]:
        return next((write for part, write in self.of_modules.items() if part in module), self.write)


@dataclass(frozen=True)
class Rounded:
    """codes u8 [out, in], scales f32 [out, groups] that f16 can hold, zeros [out, groups], of_inputs [in]."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    of_inputs: np.ndarray

    @property
    def dense(self) -> np.ndarray:
        whole = (self.codes.astype(np.float32) - self.zeros[:, self.of_inputs]) * self.scales[:, self.of_inputs]
        return whole.astype(np.float32)


def rounded(
    weight: np.ndarray, bits: int, group: int, sym: bool, shuffled: bool = False, whole_zeros: bool = True
) -> Rounded:
    inputs, largest = weight.shape[1], (1 << bits) - 1
    of_inputs = np.arange(inputs, dtype=np.int32) // (group if group > 0 else inputs)
    if shuffled:
        of_inputs = np.random.default_rng(inputs).permutation(of_inputs)
    parts = [weight[:, of_inputs == each] for each in range(of_inputs.max() + 1)]
    low = np.minimum(np.stack([part.min(1) for part in parts], 1), 0)
    high = np.maximum(np.stack([part.max(1) for part in parts], 1), 0)
    if sym:
        scales = _of_f16(2 * np.maximum(high, -low) / largest)
        zeros = np.full(scales.shape, 1 << (bits - 1))
    else:
        scales = _of_f16((high - low) / largest)
        zeros = np.round(-low / scales).astype(int) if whole_zeros else _of_f16(-low / scales)
        zeros = np.clip(zeros, 0, largest)
    codes = np.round(weight / scales[:, of_inputs] + zeros[:, of_inputs])
    return Rounded(np.clip(codes, 0, largest).astype(np.uint8), scales, zeros, of_inputs)


def _of_f16(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.float16).astype(np.float32)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """i32 [n, words]: each row of codes [n, count] as a little-endian stream of bits."""
    stream = (codes.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    stream = stream.reshape(len(codes), -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.packbits(stream, axis=1, bitorder="little").view(np.int32)


def write_gptq(weight: np.ndarray, bits: int, group: int, sym: bool, shuffled: bool, version: int) -> Written:
    made = rounded(weight, bits, group, sym, shuffled)
    zeros = packed(made.zeros.T, bits)
    if version == 1 and bits == 3:
        zeros = packed((made.zeros.T - 1) % 8, bits)
    elif version == 1:
        zeros = (zeros.view(np.uint32) - np.uint32(0xFFFFFFFF // ((1 << bits) - 1))).view(np.int32)
    tensors = {".qweight": packed(made.codes, bits).T, ".qzeros": zeros, ".scales": made.scales.T.astype(np.float16)}
    return Written(tensors | {".g_idx": made.of_inputs}, made.dense)


def write_awq(weight: np.ndarray, group: int = GROUP) -> Written:
    made = rounded(weight, 4, group, False)

    def words(codes: np.ndarray) -> np.ndarray:
        in_order = codes.reshape(len(codes), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return packed(in_order.reshape(codes.shape), 4)

    tensors = {".qweight": words(made.codes.T), ".qzeros": words(made.zeros.T)}
    return Written(tensors | {".scales": made.scales.T.astype(np.float16)}, made.dense)


def write_torchao(weight: np.ndarray, group: int = GROUP) -> Written:
    """Its integers of four bits. Their offsets, here multiples of the scales, are in its float32."""
    made = rounded(weight, 4, group, False)
    signed = made.codes ^ 8  # less 8, in two's complement
    tensors = {"._weight_qdata": (signed[:, ::2] | signed[:, 1::2] << 4).view(np.int8), "._weight_scale": made.scales.T}
    return Written(tensors | {"._weight_zero_point": ((8 - made.zeros) * made.scales).T.astype(np.float32)}, made.dense)


def nearest(numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
    """u8: which entry of `table` is the nearest to each number."""
    order = np.argsort(table, kind="stable")
    borders = (table[order][1:] + table[order][:-1]) / 2
    return order.astype(np.uint8)[np.searchsorted(borders, numbers)]


def write_bits_and_bytes(weight: np.ndarray, kind: str, double: bool) -> Written:
    table, block = (NF4 if kind == "nf4" else FP4), 64
    flat = np.pad(weight.reshape(-1), (0, -weight.size % block)).reshape(-1, block)
    largest = np.abs(flat).max(1).astype(np.float32)
    state = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    tensors = {".weight.absmax": largest, ".weight.quant_map": table}
    if double:
        offset, inner, outer = float(largest.mean()), np.linspace(-1, 1, 256).astype(np.float32), 256
        rest = largest - np.float32(offset)
        whole = np.array([np.abs(rest[at : at + outer]).max() for at in range(0, len(rest), outer)], np.float32)
        of_blocks = whole[np.arange(len(rest)) // outer]
        codes = nearest(rest / of_blocks, inner)
        largest = inner[codes] * of_blocks + np.float32(offset)
        tensors |= {".weight.absmax": codes, ".weight.nested_absmax": whole, ".weight.nested_quant_map": inner}
        state |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": offset}
    entries = nearest(flat / largest[:, None], table)
    dense = (table[entries] * largest[:, None]).reshape(-1)[: weight.size].reshape(weight.shape)
    pairs = entries.reshape(-1)[: weight.size].reshape(-1, 2)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors |= {".weight": (pairs[:, 0] << 4 | pairs[:, 1])[:, None]}
    return Written(tensors | {f".weight.quant_state.bitsandbytes__{kind}": text}, dense)


def write_int8(weight: np.ndarray, style: str) -> Written:
    """A scale for each channel, as bitsandbytes, EETQ, compressed-tensors or torchao store it."""
    largest = np.abs(weight).max(1).astype(np.float32)
    scales = largest / np.float32(127)
    if style == "eetq":
        scales = _of_f16(scales)
    codes = np.clip(np.round(weight / scales[:, None]), -127, 127).astype(np.int8)
    tensors = {
        "bitsandbytes": {".weight": codes, ".SCB": largest, ".weight_format": np.zeros((), np.uint8)},
        "eetq": {".weight": codes.T, ".weight_scales": scales.astype(np.float16)},
        "compressed-tensors": {".weight": codes, ".weight_scale": scales[:, None]},
        "torchao": {
            "._weight_qdata": codes,
            "._weight_scale": scales[:, None],
            "._weight_zero_point": np.zeros((len(codes), 1), np.int8),
        },
    }
    return Written(tensors[style], codes * scales[:, None])


def write_fp8(weight: np.ndarray, shape: str, block: int = 32) -> Written:
    """Scales of the whole matrix, of its channels, or of blocks of `block` by `block`."""
    outputs, inputs = weight.shape
    if shape == "blocks":
        padded = np.pad(np.abs(weight), ((0, -outputs % block), (0, -inputs % block)))
        scales = padded.reshape(padded.shape[0] // block, block, padded.shape[1] // block, block).max((1, 3))
    else:
        scales = np.abs(weight).max(1, keepdims=True) if shape == "channels" else np.abs(weight).max()
    scales = np.asarray(scales / LARGEST_E4M3, np.float32)
    wide = scales.repeat(block, 0).repeat(block, 1)[:outputs, :inputs] if shape == "blocks" else scales
    codes = (weight / wide).astype(E4M3)
    name = ".weight_scale_inv" if shape == "blocks" else ".weight_scale"
    return Written({".weight": codes, name: scales}, codes.astype(np.float32) * wide)


def write_mxfp8(weight: np.ndarray, group: int = 32) -> Written:
    """e4m3 with a power of two for each group, rounded up so that none overflows."""
    parts = weight.reshape(len(weight), -1, group)
    powers = np.ceil(np.log2(np.abs(parts).max(2) / LARGEST_E4M3)).astype(int)
    scales = np.ldexp(np.float32(1), powers).astype(np.float32)[..., None]
    codes = (parts / scales).astype(E4M3)
    tensors = {".weight": codes.reshape(weight.shape), ".weight_scale": (powers + 127).astype(np.uint8)}
    return Written(tensors, (codes.astype(np.float32) * scales).reshape(weight.shape))


def write_packed(weight: np.ndarray, bits: int, sym: bool, group: int = GROUP) -> Written:
    """compressed-tensors' pack-quantized."""
    made = rounded(weight, bits, group, sym)
    tensors = {".weight_packed": packed(made.codes, bits), ".weight_scale": made.scales.astype(ml_dtypes.bfloat16)}
    scales = tensors[".weight_scale"].astype(np.float32)
    tensors[".weight_shape"] = np.array(weight.shape, np.int64)
    if not sym:
        tensors[".weight_zero_point"] = packed(made.zeros.T, bits).T
    return Written(tensors, Rounded(made.codes, scales, made.zeros, made.of_inputs).dense)


def write_hqq(weight: np.ndarray, bits: int, group: int = GROUP) -> Written:
    outputs, inputs = weight.shape
    made = rounded(weight, bits, group, False, whole_zeros=False)
    rows = made.codes.reshape(-1, group)
    parts = rows.reshape(8 // bits, -1, group)  # those of one byte, the first in its highest bits
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)[:, None, None]
    tensors = {".W_q": np.bitwise_or.reduce(parts << shifts, axis=0)}
    tensors |= {".scale": made.scales.astype(np.float16), ".zero": made.zeros.astype(np.float16)}
    tensors |= {name: tensors[name].reshape(-1, 1) for name in (".scale", ".zero")}
    facts = {".nbits": bits, ".axis": 1, ".group_size": group}
    tensors |= {name: np.array(value, np.int32) for name, value in facts.items()}
    tensors[".shape"] = np.array([outputs, inputs], np.int64)
    return Written(tensors, made.dense)


def write_fp4(weight: np.ndarray, style: str) -> Written:
    """Floats of four bits: MXFP4 in groups of 32, NVFP4 in groups of 16 with a scale of the whole matrix."""
    group = 32 if style == "mxfp4" else 16
    parts = weight.reshape(len(weight), -1, group)
    ideal = np.abs(parts).max(2) / 6
    if style == "mxfp4":
        powers = np.floor(np.log2(6 * ideal)).astype(int) - 2  # 4 is the largest power of two (OCP MX 1.0, 6.3)
        scales = np.ldexp(np.float32(1), powers).astype(np.float32)
        tensors = {".weight_scale": (powers + 127).astype(np.uint8)}
    else:
        whole = np.float32(ideal.max() / LARGEST_E4M3)
        stored = (ideal / whole).astype(E4M3)
        inverse = np.float32(1) / whole
        divided = style == "compressed-tensors"
        scales = stored.astype(np.float32) / inverse if divided else stored.astype(np.float32) * whole
        name, value = (".weight_global_scale", inverse) if divided else (".weight_scale_2", whole)
        tensors = {".weight_scale": stored, name: np.array([value] if divided else value, np.float32)}
    codes = nearest(parts / scales[..., None], E2M1)
    pairs = codes.reshape(len(weight), -1, 2)
    tensors[".weight" if style == "modelopt" else ".weight_packed"] = pairs[..., 0] | pairs[..., 1] << 4
    return Written(tensors, (E2M1[codes] * scales[..., None]).reshape(weight.shape))


def gptq(bits: int, group: int, sym: bool = True, shuffled: bool = False, version: int = 1) -> Format:
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": shuffled}
    config["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    return Format(config, partial(write_gptq, bits=bits, group=group, sym=sym, shuffled=shuffled, version=version))


def _gptq_mixed() -> Format:
    """q and k have 4 bits, v has 8, with zero points in larger groups; gate has groups, up a scale for each channel."""
    base, others = gptq(4, GROUP), {"v_proj": gptq(8, 2 * GROUP, sym=False), "up_proj": gptq(4, -1)}
    dynamic = {
        f"+:.*{name}": {key: each.config[key] for key in ("bits", "group_size")} for name, each in others.items()
    }
    return Format(base.config | {"dynamic": dynamic}, base.write, {name: each.write for name, each in others.items()})


def bits_and_bytes(kind: str, double: bool = False) -> Format:
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind}
    return Format(config, partial(write_bits_and_bytes, kind=kind, double=double))


def compressed_tensors(layout: str, write: Callable[[np.ndarray], Written], bits: int, **weights: Any) -> Format:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, **weights}}
    config = {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}
    return Format(config, write)


INTEGERS = {"type": "int", "strategy": "group", "group_size": GROUP}
BLOCKS = {"strategy": "block", "block_structure": [32, 32]}
FORMATS: dict[str, Format] = {
    "gptq": gptq(4, GROUP),
    "gptq_asym": gptq(4, GROUP, sym=False),
    "gptq_act": gptq(4, GROUP, shuffled=True),
    "gptq_v2": gptq(4, GROUP, sym=False, version=2),
    "gptq_mixed": _gptq_mixed(),
    "gptq_channels": gptq(4, -1),
    "gptq_channels_asym": gptq(4, -1, sym=False),
    "gptq_8bit": gptq(8, -1),
    "gptq_3bit": gptq(3, GROUP, sym=False),
    "gptq_2bit": gptq(2, GROUP, sym=False),
    "awq": Format({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, write_awq),
    "nf4": bits_and_bytes("nf4"),
    "nf4_double": bits_and_bytes("nf4", double=True),
    "fp4": bits_and_bytes("fp4"),
    "int8": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, partial(write_int8, style="bitsandbytes")),
    "eetq": Format({"quant_method": "eetq", "weights": "int8"}, partial(write_int8, style="eetq")),
    "fp8": Format({"quant_method": "fp8", "activation_scheme": "dynamic"}, partial(write_fp8, shape="whole")),
    "fp8_blocks": Format({"quant_method": "fp8", "weight_block_size": [32, 32]}, partial(write_fp8, shape="blocks")),
    "fbgemm_fp8": Format(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, partial(write_fp8, shape="channels")
    ),
    "modelopt_fp8": Format({"quant_method": "modelopt", "quant_algo": "FP8"}, partial(write_fp8, shape="whole")),
    "modelopt_mxfp8": Format({"quant_method": "modelopt", "quant_algo": "MXFP8"}, write_mxfp8),
    "modelopt_nvfp4": Format({"quant_method": "modelopt", "quant_algo": "NVFP4"}, partial(write_fp4, style="modelopt")),
    "ct_fp8": compressed_tensors(
        "float-quantized", partial(write_fp8, shape="channels"), 8, type="float", strategy="channel"
    ),
    "ct_int8": compressed_tensors(
        "int-quantized", partial(write_int8, style="compressed-tensors"), 8, type="int", strategy="channel"
    ),
    "ct_w4": compressed_tensors("pack-quantized", partial(write_packed, bits=4, sym=True), 4, **INTEGERS),
    "ct_w4_asym": compressed_tensors(
        "pack-quantized", partial(write_packed, bits=4, sym=False), 4, **INTEGERS, symmetric=False
    ),
    "ct_nvfp4": compressed_tensors(
        "nvfp4-pack-quantized", partial(write_fp4, style="compressed-tensors"), 4, type="float", strategy="tensor_group"
    ),
    "ct_mxfp4": compressed_tensors(
        "mxfp4-pack-quantized", partial(write_fp4, style="mxfp4"), 4, type="float", strategy="group", group_size=32
    ),
    "hqq": Format({"quant_method": "hqq"}, partial(write_hqq, bits=4)),
    "torchao_int4": Format({"quant_method": "torchao"}, write_torchao),
    "torchao_int8": Format({"quant_method": "torchao"}, partial(write_int8, style="torchao")),
}  # as many as libraries write them; GGUF is in `tests/convert/tiny_gguf.py`


def write_quantized(source: Path, target: Path, format: str | Format) -> Path:
    """The checkpoint in `source` as `target`/`format`, and in floats as `target`/`dense`. Returns `target`. What has no
    name here becomes `target`/quantised.
    """
    name, made = (format, FORMATS[format]) if isinstance(format, str) else ("quantised", format)
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    input_major = config["model_type"] == "gpt2"  # whose own matrices are [in, out]; tools quantise them turned
    stored: dict[str, np.ndarray] = {}
    for key, tensor in list(tensors.items()):
        if tensor.ndim != 2 or re.search(NOT_QUANTISED, key) or re.search(made.kept, key):
            stored[key] = tensor
            continue
        written = made.of(key)(np.ascontiguousarray(tensor.T) if input_major else tensor)
        tensors[key] = np.ascontiguousarray(written.dense.T if input_major else written.dense)
        stored |= {key.removesuffix(".weight") + suffix: each for suffix, each in written.tensors.items()}
    shutil.copytree(source, target / name)
    shutil.copytree(source, target / "dense")
    save_file(tensors, target / "dense" / "model.safetensors", {"format": "pt"})
    save_arrays(stored, target / name / "model.safetensors")
    config["quantization_config"] = made.config
    (target / name / "config.json").write_text(json.dumps(config))
    return target


def write_gpt_oss(source: Path, target: Path) -> Path:
    """gpt-oss with its experts in MXFP4, as `target`/mxfp4, and in floats as `target`/dense. Returns `target`."""
    tensors = load_file(source / "model.safetensors")
    stored = dict(tensors)
    for name in [name for name in tensors if re.search(r"experts\.(gate_up|down)_proj$", name)]:
        experts = [write_fp4(np.ascontiguousarray(each.T), "mxfp4") for each in stored.pop(name)]
        tensors[name] = np.ascontiguousarray(np.stack([each.dense.T for each in experts]))
        scales = stored[f"{name}_scales"] = np.stack([each.tensors[".weight_scale"] for each in experts])
        codes = np.stack([each.tensors[".weight_packed"] for each in experts])
        stored[f"{name}_blocks"] = codes.reshape(*scales.shape, 16)
    shutil.copytree(source, target / "mxfp4")
    shutil.copytree(source, target / "dense")
    save_file(tensors, target / "dense" / "model.safetensors", {"format": "pt"})
    save_arrays(stored, target / "mxfp4" / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (target / "mxfp4" / "config.json").write_text(json.dumps(config))
    return target


def save_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """With the types that `safetensors.numpy` lacks."""
    header = encode_header({name: (array.dtype.name, array.shape) for name, array in arrays.items()})
    path.write_bytes(header + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values()))
