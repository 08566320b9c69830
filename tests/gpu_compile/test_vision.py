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
TOKENS = {"see_llava_next": 5 * 577, "see_gemma3": 4096, "see_qwen2_5": 5476}
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


@pytest.mark.parametrize("program", ["decode_mllama", "mixed_mllama", "see_mllama"])
def test_layers_read_pictures_where_they_lie(facts: FactsByProgram, program: str) -> None:
    """The pool is as large as a cache: nothing copies it, or a part of it, and the host launches one graph."""
    found = facts[program]
    assert found["aliased"] == found["donated"] > 0
    assert (found["copies"], found["rewrites"], found["launched"]) == ([], [], ["CommandBuffer"])


@pytest.mark.parametrize("program", ["decode_seeing", "decode_by_axes"])
def test_behind_a_prompt_a_model_that_sees_costs_what_others_do(facts: FactsByProgram, program: str) -> None:
    assert facts[program] | {"lowered": 0} == facts["decode_4_layers"] | {"lowered": 0}


def test_without_a_rope_of_three_axes_decoding_is_the_same_program(facts: FactsByProgram) -> None:
    assert facts["decode_seeing"]["lowered"] == facts["decode_4_layers"]["lowered"]


@pytest.mark.parametrize("program", ["mixed_seeing", "mixed_by_axes"])
def test_a_prompts_images_are_merged_and_its_keys_turned_without_a_kernel_more(
    facts: FactsByProgram, program: str
) -> None:
    assert facts[program] | {"lowered": 0} == facts["mixed"] | {"lowered": 0}
