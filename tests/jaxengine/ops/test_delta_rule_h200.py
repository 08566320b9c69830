"""What the compiler makes of the gated delta rule on an H200, with none at hand."""

from typing import Any

import pytest

from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_delta_rule import KERNELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return toolchain.facts("tests.jaxengine.ops.h200_delta_rule", tmp_path_factory)


@pytest.mark.parametrize(
    ("name", "spilled"),
    [
        ("decode", 0),
        ("chunks", 0),
        ("chunks in f32", 400),
        ("mamba 2 decode", 0),
        ("mamba 2 chunks", 0),
        ("guesses", 0),
        ("mamba 2 guesses", 0),
    ],
)
def test_states_stay_in_registers(facts: dict[str, dict[str, Any]], name: str, spilled: int) -> None:
    """In f32, which few models have on a GPU, each product is three."""
    assert facts.keys() == KERNELS.keys()
    assert facts[name]["spilled"] <= spilled
