"""What holds for steps holds for towers: LLaVA-NeXT-7B's, for one picture of five tiles, Gemma 3's, with heads of 72,
and Qwen2.5-VL's, with heads of 80, ropes and windows.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram
from tests.shapes import CLIP_L_336, QWEN2_5_TOWER, SIGLIP_SO400M

pytestmark = pytest.mark.slow

TOWERS = {
    "see_llava_next": CLIP_L_336,
    "see_llava_next_tp8": CLIP_L_336,
    "see_gemma3": SIGLIP_SO400M,
    "see_qwen2_5": QWEN2_5_TOWER,
}
TOKENS = {"see_llava_next": 8 * 577, "see_gemma3": 4096, "see_qwen2_5": 5476}
BF16, MIB = 2, 1 << 20


@pytest.mark.parametrize("program", TOWERS)
def test_the_pool_is_updated_in_place_and_nothing_large_is_written_twice(facts: FactsByProgram, program: str) -> None:
    assert facts[program]["aliased"] == facts[program]["donated"] > 0
    assert facts[program]["copies"] == []
    if program != "see_gemma3":  # whose patches plus positions have the shape of the table of positions
        assert facts[program]["rewrites"] == []


@pytest.mark.parametrize("program", TOWERS)
def test_the_host_launches_one_cuda_graph_for_a_picture(facts: FactsByProgram, program: str) -> None:
    assert facts[program]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("program", TOKENS)
def test_temporaries_are_one_layers_activations(facts: FactsByProgram, program: str) -> None:
    """With the keys and values of a layer, and what the connector makes of all patches."""
    tower = TOWERS[program]
    activations = TOKENS[program] * ((1 + 2 * tower.gated) * tower.ffn_size + 8 * tower.hidden_size) * BF16
    assert facts[program]["temporaries"] < activations + 16 * MIB


@pytest.mark.parametrize("program", TOKENS)
def test_a_layer_is_ten_kernels(facts: FactsByProgram, program: str) -> None:
    """Four products, their biases and the activation, attention's kernels, and two sums with norms."""
    assert facts[program]["kernels"] <= 10 * TOWERS[program].num_layers + 30


def test_devices_sum_once_for_each_branch(facts: FactsByProgram) -> None:
    found = facts["see_llava_next_tp8"]["collectives"]
    assert found == {"all-reduce": 2 * CLIP_L_336.num_layers + 1}  # and the connector's
