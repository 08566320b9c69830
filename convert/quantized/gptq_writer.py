"""Modules in GPTQ's layout, first version, as they are written: the layout is described in `gptq.py`."""

import math
from typing import Any

import numpy as np

from convert.quantized.bits import WORD, pack
from convert.quantized.gptq import ORDER, QWEIGHT, QZEROS, SCALES


def divisor(bits: int) -> int:
    """What both sizes of a matrix are multiples of, so that its codes and zero points fill whole words."""
    return WORD // math.gcd(WORD, bits)


def module_tensors(codes: np.ndarray, scales: np.ndarray, groups: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """The tensors of a module, by their suffixes. Zero points are the middle of the codes, and stored less one.

    Args:
        codes: u8 [out, in].
        scales: f16 [out, groups].
        groups: i32 [in], the group of each input.
    """
    zeros = np.full(scales.T.shape, (1 << (bits - 1)) - 1, np.uint8)
    return {
        QWEIGHT: np.ascontiguousarray(pack(codes, bits).T),
        QZEROS: pack(zeros, bits),
        SCALES: np.ascontiguousarray(scales.T),
        ORDER: groups.astype(np.int32),
    }


def module_bytes(outputs: int, inputs: int, bits: int, groups: int) -> int:
    """How many bytes those tensors have."""
    return outputs * inputs * bits // 8 + groups * outputs * bits // 8 + 2 * groups * outputs + 4 * inputs


def configuration(bits: int, group: int, damping: float, by_activation: bool) -> dict[str, Any]:
    """What readers want to know, under the names that AutoGPTQ and GPTQModel gave it."""
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "damp_percent": damping,
        "desc_act": by_activation,
        "static_groups": False,
        "sym": True,
        "true_sequential": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }
