"""What a prompt's step of a Llama of 8B writes out of matrices in few bits: a test allows this much and no more."""

import re
from typing import Any

from jaxengine.ops.triton import dequantised
from tests.gpu_compile.h200 import MIB
from tests.gpu_compile.steps import FOUR_LAYERS, TOKENS
from tests.shapes import LLAMA_8B

HIDDEN, FFN = LLAMA_8B.hidden_size, LLAMA_8B.ffn_size
MATRICES = [(6144, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN)]  # of a layer, as they are multiplied
LARGEST = max(2 * outputs * inputs for outputs, inputs in MATRICES)  # bytes: 224 MiB
# Bytes that come on top of those of 16 bits. Where gate and up are multiplied there is no activation yet, but one more
# array of hidden states; beside their matrix there is no room for another, whose smallest has 32 MiB.
ONE_MATRIX = LARGEST + 2 * TOKENS * (HIDDEN - FFN)
KERNEL = re.compile(r"custom-call dequantised_chunk: bf16\[(\d+),(\d+)\]\{1,0\} writes all of parameter")

assert LARGEST <= dequantised.CHUNK


def written(facts: dict[str, Any]) -> list[tuple[int, int]]:
    """Outputs and inputs of each matrix that a step writes out; anything else that it does would be a fault."""
    found = [KERNEL.match(each) for each in facts["rewrites"]]
    assert all(found), facts["rewrites"]
    return [(int(each[1]), int(each[2])) for each in found if each]


def assert_one_matrix_at_a_time(found: dict[str, Any], plain: dict[str, Any]) -> None:
    """Of a prompt's step with weights in few bits, beside that in 16; and no cache is written out."""
    assert found["copies"] == []
    assert written(found) == MATRICES * FOUR_LAYERS.num_layers
    assert found["temporaries"] <= plain["temporaries"] + ONE_MATRIX + MIB
    assert found["kernels"] <= plain["kernels"] + len(written(found)) + 1
