"""What a GPU holds of an 8B model beside what the format itself takes: no more, but for the formats listed here."""

from pathlib import Path

import numpy as np
import pytest

from jaxengine.capacity.roofline import projection_elements, step_cost
from tests.bench.formats import GROUP, held_bits, step_bytes, wide_llama
from tests.quantized_formats import BLOCK, published
from tests.shapes import LLAMA_8B

FORMATS = published(GROUP)
WIDENED = {  # bits that a GPU holds where it needs more than the format
    f"GPTQ, 3 bits, groups of {GROUP}": 4 + 24 / GROUP,  # codes in 4 bits
    "GPTQ, 2 bits, groups of 32": 4 + 24 / 32,  # likewise
    "HQQ, 2 bits, groups of 64": 4 + 32 / 64,  # likewise
    f"fp8, blocks of {BLOCK}": 8 + 32 / BLOCK,  # a scale of f32 for each row of a block
    "bitsandbytes nf4, double": 4 + 32 / 64,  # scales in f32
    "ModelOpt NVFP4": 4 + 32 / 16,  # likewise
    "compressed-tensors MXFP4": 4 + 16 / 32,  # bfloat16
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_llama(tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_gpu_holds_the_bits_of_the_format(name: str, original: Path, tmp_path: Path) -> None:
    held = held_bits(FORMATS[name], original, tmp_path, LLAMA_8B)
    most = WIDENED.get(name, FORMATS[name].bits)
    assert FORMATS[name].bits * 0.97 < held < most * 1.001 + 0.03 * (name not in WIDENED) * most


@pytest.mark.parametrize("name", FORMATS)
def test_files_take_the_bits_that_a_format_is_said_to(name: str) -> None:
    """Beyond scales of channels and an order of inputs, which are a fiftieth at this size."""
    weight = np.random.default_rng(0).standard_normal((1024, 2048), np.float32)
    written = sum(array.nbytes for array in FORMATS[name].format.write(weight).tensors.values())
    assert FORMATS[name].bits <= 8 * written / weight.size < FORMATS[name].bits * 1.02


def test_a_step_reads_what_the_roofline_counts() -> None:
    plain = step_cost(LLAMA_8B, rows=1, new=1, context=1024).bytes
    assert step_bytes(LLAMA_8B, 16) == pytest.approx(plain, rel=1e-4)
    assert step_bytes(LLAMA_8B, 16) - step_bytes(LLAMA_8B, 4) == 1.5 * projection_elements(LLAMA_8B)
    assert projection_elements(LLAMA_8B) == pytest.approx(6.98e9, rel=1e-3)
