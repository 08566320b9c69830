"""Stacks of experts that kernels would read from elsewhere are refused."""

from dataclasses import replace

import pytest

from jaxengine.architecture.model import Experts, LayerKind
from jaxengine.device import CPU
from jaxengine.weights.addressing import check_addressable
from jaxengine.weights.quantization import chosen_formats
from tests.shapes import H200, LLAMA_8B

# As Qwen3-Coder-480B's: gate and up of a layer have 5.0e9 weights.
LARGE = replace(
    LLAMA_8B, hidden_size=6144, num_layers=1, experts=Experts(160, 8, 2560), kinds=(LayerKind(experts=True),)
)


@pytest.mark.parametrize(("quantize", "devices"), [("fp8", 4), ("int4", 2), (None, 2)])
def test_most_stacks_can_be_addressed(quantize: str | None, devices: int) -> None:
    """In 4 bits a word of 16 has several, and Pallas numbers words."""
    check_addressable(LARGE, chosen_formats(LARGE, quantize, devices), H200, devices)


@pytest.mark.parametrize(("quantize", "devices"), [("fp8", 2), ("int8", 2)])
def test_of_two_to_four_gib_in_bytes_none_can(quantize: str, devices: int) -> None:
    formats = chosen_formats(LARGE, quantize, devices)
    with pytest.raises(ValueError, match=r"layers.0.experts_gate_up takes 2.34 GiB of each device in (int8|fp8), and"):
        check_addressable(LARGE, formats, H200, devices)
    check_addressable(LARGE, formats, CPU, devices)
