"""The quantised formats as checkpoints are published in them: group sizes, and the bits that a weight takes."""

from dataclasses import dataclass
from functools import partial

from tests.tiny_quantized import (
    Format,
    bits_and_bytes,
    compressed_tensors,
    gptq,
    write_awq,
    write_fp4,
    write_fp8,
    write_hqq,
    write_int8,
    write_packed,
)

BLOCK = 128  # rows and columns that share a scale of fp8, in DeepSeek's and Qwen3's checkpoints


@dataclass(frozen=True)
class Published:
    """bits: of a weight on disk, with its scales and zero points; scales of channels and matrices are left out."""

    format: Format
    bits: float


def published(group: int) -> dict[str, Published]:
    """Every format by what a user calls it. `group`: how many inputs share a scale, where that is the user's choice."""
    return {
        **_of_gptq(group),
        **_of_8_bits(),
        **_of_tables(),
        **_of_compressed_tensors(group),
        f"AWQ, groups of {group}": Published(
            Format(
                {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"},
                partial(write_awq, group=group),
            ),
            4 + 20 / group,
        ),
        **{
            f"HQQ, {bits} bits, groups of 64": Published(
                Format({"quant_method": "hqq"}, partial(write_hqq, bits=bits, group=64)), bits + 32 / 64
            )
            for bits in (8, 4, 2)
        },
    }


def _of_gptq(group: int) -> dict[str, Published]:
    def bits(width: int, size: int = group) -> float:
        return width + (16 + width) / size

    return {
        f"GPTQ, 4 bits, groups of {group}": Published(gptq(4, group), bits(4)),
        "GPTQ, 4 bits, groups of 32": Published(gptq(4, 32), bits(4, 32)),
        f"GPTQ, 4 bits, groups of {group}, zero points": Published(gptq(4, group, sym=False, version=2), bits(4)),
        f"GPTQ, 4 bits, groups of {group}, act-order": Published(gptq(4, group, shuffled=True), bits(4)),
        f"GPTQ, 8 bits, groups of {group}": Published(gptq(8, group), bits(8)),
        "GPTQ, 8 bits, channels": Published(gptq(8, -1), 8),
        f"GPTQ, 3 bits, groups of {group}": Published(gptq(3, group, sym=False), bits(3)),
        "GPTQ, 2 bits, groups of 32": Published(gptq(2, 32, sym=False), bits(2, 32)),
    }


def _of_8_bits() -> dict[str, Published]:
    eetq = Format({"quant_method": "eetq", "weights": "int8"}, partial(write_int8, style="eetq"))
    blocks = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    return {
        "bitsandbytes int8": Published(
            Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, partial(write_int8, style="bitsandbytes")), 8
        ),
        "EETQ": Published(eetq, 8),
        "fp8, one scale": Published(
            Format({"quant_method": "fp8", "activation_scheme": "dynamic"}, partial(write_fp8, shape="whole")), 8
        ),
        "fp8, channels": Published(
            Format({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, partial(write_fp8, shape="channels")),
            8,
        ),
        f"fp8, blocks of {BLOCK}": Published(
            Format(blocks, partial(write_fp8, shape="blocks", block=BLOCK)), 8 + 32 / BLOCK**2
        ),
    }


def _of_tables() -> dict[str, Published]:
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    return {
        "bitsandbytes nf4": Published(bits_and_bytes("nf4"), 4 + 32 / 64),
        "bitsandbytes nf4, double": Published(bits_and_bytes("nf4", double=True), 4 + 8 / 64 + 32 / (64 * 256)),
        "bitsandbytes fp4": Published(bits_and_bytes("fp4"), 4 + 32 / 64),
        "ModelOpt NVFP4": Published(Format(nvfp4, partial(write_fp4, style="modelopt")), 4 + 8 / 16),
    }


def _of_compressed_tensors(group: int) -> dict[str, Published]:
    groups = {"type": "int", "strategy": "group", "group_size": group}
    packed = partial(compressed_tensors, "pack-quantized")
    channels = partial(write_fp8, shape="channels")
    mxfp4 = {"type": "float", "strategy": "group", "group_size": 32}
    return {
        f"compressed-tensors, 4 bits, groups of {group}": Published(
            packed(partial(write_packed, bits=4, sym=True, group=group), 4, **groups), 4 + 16 / group
        ),
        f"compressed-tensors, 4 bits, groups of {group}, zero points": Published(
            packed(partial(write_packed, bits=4, sym=False, group=group), 4, **groups, symmetric=False), 4 + 20 / group
        ),
        "compressed-tensors int8": Published(
            compressed_tensors(
                "int-quantized", partial(write_int8, style="compressed-tensors"), 8, type="int", strategy="channel"
            ),
            8,
        ),
        "compressed-tensors fp8": Published(
            compressed_tensors("float-quantized", channels, 8, type="float", strategy="channel"), 8
        ),
        "compressed-tensors MXFP4": Published(
            compressed_tensors("mxfp4-pack-quantized", partial(write_fp4, style="mxfp4"), 4, **mxfp4), 4 + 8 / 32
        ),
    }
