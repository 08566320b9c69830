"""What XLA makes of the engine's steps on H200s, at the shape of Llama-3.1-8B in bf16, with none at hand.

A step that copies its cache, turns a weight or leaves its CUDA graph is still correct, only slow: nothing else would
notice.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram
from tests.shapes import LLAMA_8B, LLAMA_70B

pytestmark = pytest.mark.slow

LAYERS = {"decode": 32, "decode_1": 4, "mixed": 4, "decode_tp8": 4, "decode_70b_tp8": 4, "mixed_tp8": 4}
STEPS = [*LAYERS, "sample_greedy", "sample", "sample_greedy_tp8"]
TOKENS = {"decode": 128, "decode_1": 1, "mixed": 2048, "decode_tp8": 128, "decode_70b_tp8": 128, "mixed_tp8": 2048}
VOCAB, ROWS, PAGE_SIZE = 128256, 128, 16
BF16, F32, I32 = 2, 4, 4
MIB = 1 << 20
AROUND = 10  # kernels before the layers and behind them: fewer than a ninth kernel in each of four layers would be seen


@pytest.mark.parametrize("step", STEPS)
def test_caches_and_slots_are_updated_in_place_to_the_last_byte(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0


@pytest.mark.parametrize("step", STEPS)
def test_nothing_large_is_copied(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["copies"] == []


@pytest.mark.parametrize("step", STEPS)
def test_no_weight_or_cache_is_written_out_again(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == []


@pytest.mark.parametrize("step", STEPS)
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", LAYERS)
def test_a_layer_is_at_most_8_kernels_or_10_with_prompts(facts: FactsByProgram, step: str) -> None:
    """More of them is time between kernels, 1 to 3 µs each. Decode: qkv, attention, out, add and norm, gate and up,
    activation, down, add and norm. Prompts: keys are written before and their own kernel attends, tile by tile, which
    are listed and ordered before the layers; and how much rows of one query read is summed.
    """
    prompts, tiles = (2, 4) if step.startswith("mixed") else (0, 0)
    assert facts[step]["kernels"] <= (8 + prompts) * LAYERS[step] + AROUND + tiles


@pytest.mark.parametrize("step", ["decode_1", "mixed"])
def test_beside_caches_that_fill_the_device_a_step_is_the_same(facts: FactsByProgram, step: str) -> None:
    """Though XLA counts them again behind each kernel that writes them, nothing is computed twice to save memory."""
    full, small = facts[f"{step}_full"], facts[step]
    assert full["donated"] == full["aliased"] > 100e9
    for fact in ("kernels", "products", "copies", "launched"):
        assert full[fact] == small[fact], fact


@pytest.mark.parametrize("step", LAYERS)
def test_temporaries_are_one_layers_activations(facts: FactsByProgram, step: str) -> None:
    """Gate, up and their product, and eight arrays of the hidden width; 16 MiB more for a small step's split sums."""
    devices = 8 if step.endswith("tp8") else 1
    shape = LLAMA_70B if "70b" in step else LLAMA_8B
    activations = TOKENS[step] * (3 * shape.ffn_size // devices + 8 * shape.hidden_size) * BF16
    assert facts[step]["temporaries"] < activations + 16 * MIB


def test_of_a_wider_page_table_a_step_holds_its_rows_and_nothing_else(facts: FactsByProgram) -> None:
    rows = ROWS * (131072 - 8192) // PAGE_SIZE * I32
    assert facts["decode_long"]["temporaries"] - facts["decode"]["temporaries"] <= rows + MIB


@pytest.mark.parametrize(
    ("step", "copies", "devices"), [("sample_greedy", 1, 1), ("sample_greedy_tp8", 1, 8), ("sample", 7.5, 1)]
)
def test_drawing_needs_few_arrays_of_logits(facts: FactsByProgram, step: str, copies: float, devices: int) -> None:
    """Two of them, and a few of 8,192 ids a row, are of samplers that look back."""
    assert facts[step]["temporaries"] < copies * ROWS * VOCAB * F32 // devices + 4 * MIB


@pytest.mark.parametrize("step", ["sample", "sample_greedy"])
def test_no_vocabulary_is_sorted(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["longest_sort"] < VOCAB / 16


def test_a_vocabulary_that_is_sorted_is_seen(facts: FactsByProgram) -> None:
    assert facts["vocabulary_sorted"]["longest_sort"] == VOCAB


@pytest.mark.parametrize("step", ["decode_tp8", "decode_70b_tp8", "mixed_tp8"])
def test_tensor_parallel_layers_communicate_twice_and_only_sums(facts: FactsByProgram, step: str) -> None:
    """After attention and after the MLP; once more for the embedding, which is split by vocabulary."""
    assert facts[step]["collectives"] == {"all-reduce": 2 * LAYERS[step] + 1}


def test_a_step_of_two_hosts_is_that_of_one_with_as_many_devices(facts: FactsByProgram) -> None:
    of_one, of_two = facts["decode_tp8"], facts["decode_2_hosts_tp8"]
    assert {name: of_two[name] for name in ("collectives", "kernels", "products", "copies", "aliased")} == {
        name: of_one[name] for name in ("collectives", "kernels", "products", "copies", "aliased")
    }


def test_steps_on_one_device_do_not_communicate(facts: FactsByProgram) -> None:
    assert [facts[step]["collectives"] for step in ("decode", "mixed", "sample_greedy", "sample")] == [{}] * 4


def test_a_cache_that_is_not_donated_is_seen_to_be_copied(facts: FactsByProgram) -> None:
    assert len(facts["cache_not_donated"]["copies"]) == len(facts["cache_not_donated"]["rewrites"]) == 1


def test_a_weight_that_is_transposed_is_seen(facts: FactsByProgram) -> None:
    assert len(facts["weight_turned"]["rewrites"]) == 1


def test_a_loop_that_the_host_must_drive_is_seen(facts: FactsByProgram) -> None:
    assert "While" in facts["loop_of_unknown_length"]["launched"]


def test_grammars_cost_the_sampler_at_most_2_kernels(facts: FactsByProgram) -> None:
    assert facts["sample"]["kernels"] <= facts["sample_without_masks"]["kernels"] + 2


def test_samplers_that_nobody_asks_for_cost_the_sampler_at_most_3_kernels(facts: FactsByProgram) -> None:
    """And a look at the queues and at the flags."""
    assert facts["sample"]["always"] <= facts["sample_without_samplers"]["always"] + 3


def test_masks_are_written_in_place(facts: FactsByProgram) -> None:
    assert facts["write_masks"]["aliased"] == facts["write_masks"]["donated"] > 0
    assert facts["write_masks"]["copies"] == []


def test_beam_searches_cost_the_sampler_at_most_6_kernels(facts: FactsByProgram) -> None:
    """Most of which run only where there are beams; and no copy of what is sampled from."""
    assert facts["sample"]["kernels"] <= facts["sample_without_sums"]["kernels"] + 6
    assert facts["sample"]["temporaries"] <= facts["sample_without_sums"]["temporaries"] + MIB


def test_pages_are_copied_in_place(facts: FactsByProgram) -> None:
    """The keys and the values of all layers take two kernels each at most."""
    assert facts["copy_pages"]["aliased"] == facts["copy_pages"]["donated"] > 0
    assert facts["copy_pages"]["copies"] == []
    assert facts["copy_pages"]["kernels"] <= 2 * 2


@pytest.mark.parametrize("program", ["sum_hidden", "sum_hidden_tp8"])
def test_means_over_tokens_are_summed_where_they_lie(facts: FactsByProgram, program: str) -> None:
    """2,048 hidden states of 4,096 numbers, which are not written again as floats."""
    found = facts[program]
    assert found["copies"] == [] and found["collectives"] == {}
    assert found["temporaries"] <= MIB and found["kernels"] <= 2


def test_a_block_of_prompt_logits_is_the_head_and_nothing_else(facts: FactsByProgram) -> None:
    """On 8 devices each computes its part of the vocabulary, which is then gathered."""
    assert facts["logits"]["kernels"] == 1 and facts["logits"]["temporaries"] == 0
    assert facts["logits_tp8"]["collectives"] == {"all-gather": 1}
    for program in ("logits", "logits_tp8"):
        assert facts[program]["copies"] == facts[program]["rewrites"] == []
        assert facts[program]["temporaries"] < 32 * VOCAB * F32 + MIB
