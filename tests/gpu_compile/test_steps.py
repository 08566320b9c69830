"""What XLA makes of the engine's steps on H200s, at the shape of Llama-3.1-8B in bf16, with none at hand.

A step that copies its cache, turns a weight or leaves its CUDA graph is still correct, only slow: nothing else would
notice.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

STEPS = ["decode", "mixed", "draw_greedy", "draw", "decode_tp8", "mixed_tp8", "draw_greedy_tp8"]
GRAPHED = [step for step in STEPS if step != "draw"]
LAYERS = {"decode": 32, "mixed": 4, "decode_tp8": 4, "mixed_tp8": 4}
TOKENS = {"decode": 128, "mixed": 2048, "decode_tp8": 128, "mixed_tp8": 2048}
HIDDEN, FFN, VOCAB, ROWS = 4096, 14336, 128256, 128
BF16, F32 = 2, 4
MIB = 1 << 20


@pytest.mark.parametrize("step", STEPS)
def test_caches_and_slots_are_updated_in_place_to_the_last_byte(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0


@pytest.mark.parametrize("step", STEPS)
def test_nothing_large_is_copied(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["copies"] == []


@pytest.mark.parametrize("step", STEPS)
def test_no_weight_or_cache_is_written_out_again(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == []


@pytest.mark.parametrize("step", GRAPHED)
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", LAYERS)
def test_a_layer_is_at_most_16_kernels(facts: FactsByProgram, step: str) -> None:
    """15 for a decode layer with JAX 0.10.2: more of them is time between kernels, 1 to 3 µs each."""
    assert facts[step]["kernels"] <= 16 * LAYERS[step] + 8


@pytest.mark.parametrize("step", LAYERS)
def test_temporaries_are_one_layers_activations(facts: FactsByProgram, step: str) -> None:
    """Gate, up and their product, and eight arrays of the hidden width; 16 MiB more for a small step's split sums."""
    devices = 8 if step.endswith("tp8") else 1
    activations = TOKENS[step] * (3 * FFN // devices + 8 * HIDDEN) * BF16
    assert facts[step]["temporaries"] < activations + 16 * MIB


@pytest.mark.parametrize(
    ("step", "copies", "devices"), [("draw_greedy", 1, 1), ("draw_greedy_tp8", 1, 8), ("draw", 5, 1)]
)
def test_drawing_needs_few_arrays_of_logits(facts: FactsByProgram, step: str, copies: int, devices: int) -> None:
    assert facts[step]["temporaries"] < copies * ROWS * VOCAB * F32 // devices + 4 * MIB


@pytest.mark.parametrize("step", ["decode_tp8", "mixed_tp8"])
def test_tensor_parallel_layers_communicate_twice_and_only_sums(facts: FactsByProgram, step: str) -> None:
    """After attention and after the MLP; once more for the embedding, which is split by vocabulary."""
    assert facts[step]["collectives"] == {"all-reduce": 2 * LAYERS[step] + 1}


def test_steps_on_one_device_do_not_communicate(facts: FactsByProgram) -> None:
    assert [facts[step]["collectives"] for step in ("decode", "mixed", "draw_greedy", "draw")] == [{}] * 4


def test_reference_attention_leaves_the_graph_once_a_layer(facts: FactsByProgram) -> None:
    """Why it is not the GPU's default: its loop is as long as the longest row, which only the device knows."""
    assert facts["decode_reference"]["launched"] == ["CommandBuffer", "While"] * 4 + ["CommandBuffer"]


def test_a_cache_that_is_not_donated_is_seen_to_be_copied(facts: FactsByProgram) -> None:
    assert len(facts["cache_not_donated"]["copies"]) == len(facts["cache_not_donated"]["rewrites"]) == 1


def test_a_weight_that_is_transposed_is_seen(facts: FactsByProgram) -> None:
    assert len(facts["weight_turned"]["rewrites"]) == 1


def test_a_loop_that_the_host_must_drive_is_seen(facts: FactsByProgram) -> None:
    assert "While" in facts["loop_of_unknown_length"]["launched"]
