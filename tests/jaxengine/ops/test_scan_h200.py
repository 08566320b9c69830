"""What the compiler makes of Falcon-Mamba 7B's steps and of its scan on an H200, with none at hand."""

from typing import Any

import pytest

from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_scan import CHANNELS, KERNELS, LAYERS, STEPS

pytestmark = pytest.mark.slow

MIB = 1 << 20
Facts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    return toolchain.facts("tests.jaxengine.ops.h200_scan", tmp_path_factory)


@pytest.mark.parametrize("name", STEPS)
def test_states_are_updated_in_place_and_nothing_large_is_copied(facts: dict[str, Facts], name: str) -> None:
    step = facts["steps"][name]
    assert step["aliased"] == step["donated"] > 0
    assert step["copies"] == []


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_one_cuda_graph_of_at_most_24_kernels_a_layer(facts: dict[str, Facts], name: str) -> None:
    """22 for a decode layer with JAX 0.10.2."""
    assert facts["steps"][name]["launched"] == ["CommandBuffer"]
    assert facts["steps"][name]["kernels"] <= 24 * LAYERS


@pytest.mark.parametrize(("name", "tokens"), [("decode", 128), ("mixed", 2048)])
def test_temporaries_are_one_layer_s_activations(facts: dict[str, Facts], name: str, tokens: int) -> None:
    """Per channel: what comes in, the gate, what is convolved, time steps and outputs; never a state per token."""
    assert facts["steps"][name]["temporaries"] < 24 * tokens * CHANNELS + 8 * MIB


def test_a_split_layer_communicates_twice_and_only_sums(facts: dict[str, Facts]) -> None:
    """For B, C and time steps, and at its end; once more for the embedding."""
    assert facts["steps"]["decode_tp2"]["collectives"] == {"all-reduce": 2 * LAYERS + 1}


@pytest.mark.parametrize("name", KERNELS)
def test_the_scan_keeps_its_states_in_registers(facts: dict[str, Facts], name: str) -> None:
    assert facts["kernels"][name]["spilled"] == 0
