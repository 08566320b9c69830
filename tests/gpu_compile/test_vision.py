"""What holds for steps holds for a tower: LLaVA-NeXT-7B's, of CLIP's 23 layers, for one picture of five tiles."""

import pytest

from tests.gpu_compile.conftest import FactsByProgram
from tests.shapes import CLIP_L_336

pytestmark = pytest.mark.slow

PROGRAMS = ("see_llava_next", "see_llava_next_tp8")
TILES = 8  # five, in the least shape that holds them
TOKENS = TILES * (1 + 24 * 24)
LAYERS = CLIP_L_336.num_layers
BF16, MIB = 2, 1 << 20


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_pool_is_updated_in_place_and_nothing_large_is_written_twice(facts: FactsByProgram, program: str) -> None:
    assert facts[program]["aliased"] == facts[program]["donated"] > 0
    assert facts[program]["copies"] == facts[program]["rewrites"] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_host_launches_one_cuda_graph_for_a_picture(facts: FactsByProgram, program: str) -> None:
    assert facts[program]["launched"] == ["CommandBuffer"]


def test_temporaries_are_one_layers_activations(facts: FactsByProgram) -> None:
    """With the keys and values of a layer, and the connector's two rows of 4096 for each patch."""
    activations = TOKENS * (CLIP_L_336.ffn_size + 6 * CLIP_L_336.hidden_size) * BF16
    assert facts["see_llava_next"]["temporaries"] < activations + 8 * MIB


def test_a_layer_is_ten_kernels(facts: FactsByProgram) -> None:
    """Four products, their biases and the activation, attention's kernels, and two sums with norms."""
    assert facts["see_llava_next"]["kernels"] <= 10 * LAYERS + 25


def test_devices_sum_once_for_each_branch(facts: FactsByProgram) -> None:
    assert facts["see_llava_next_tp8"]["collectives"] == {"all-reduce": 2 * LAYERS + 1}  # and the connector's
