"""What a step that verifies drafts is on an H200, with none at hand: a mixed step, and a sampler a little larger."""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

pytestmark = pytest.mark.slow

MIB = 1 << 20
VERIFYING = ("verify_16", "verify_128")
SAMPLERS = {"sample_guesses": "sample", "sample_greedy_guesses": "sample_greedy"}


@pytest.mark.parametrize("step", VERIFYING)
def test_it_launches_what_a_mixed_step_does(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["copies"] == facts[step]["rewrites"] == []
    assert facts[step]["kernels"] <= facts["mixed"]["kernels"] + 1
    assert facts[step]["launched"] == ["CommandBuffer"]


def test_states_are_kept_in_front_of_guesses_in_place(facts: FactsByProgram) -> None:
    """Where guesses begin is computed once, for all layers."""
    found, mixed = facts["verify_qwen3_5"], facts["mixed_qwen3_5"]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"] > 0
    assert found["kernels"] <= mixed["kernels"] + 6


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_which_samples_count_takes_a_few_kernels(facts: FactsByProgram, sampler: str) -> None:
    plain = facts[SAMPLERS[sampler]]
    assert facts[sampler]["always"] <= plain["always"] + 4
    assert facts[sampler]["kernels"] <= plain["kernels"] + 8  # of samplers that look back at guesses too
    assert len(facts[sampler]["copies"]) <= len(plain["copies"])
    assert facts[sampler]["launched"] == plain["launched"]


def test_counts_with_guesses_are_not_kept_beside_those_without(facts: FactsByProgram) -> None:
    """Of 128 samples of 128,256 ids, twice."""
    counts = 2 * 128 * 128256 * 4
    assert facts["sample_guesses"]["temporaries"] <= facts["sample"]["temporaries"] + counts + 16 * MIB


# --- learnt drafters: 5 heads of Medusa, 128,256 ids --------------------------------------------------------------

LOGITS = 128256 * 4  # bytes of a row


@pytest.mark.parametrize(
    ("program", "rows", "kernels"),
    [
        ("propose_medusa", 128, 5 * 7),
        ("propose_medusa_1", 1, 5 * 8),
        ("propose_medusa_tp8", 128, 5 * 7),
        ("propose_of_the_models_head", 5 * 16, 12),
        ("propose_mlp", 128, 4 * 10),
    ],
)
def test_a_drafter_copies_no_weights_and_keeps_one_guess_at_a_time(
    facts: FactsByProgram, program: str, rows: int, kernels: int
) -> None:
    """But where guesses share the model's head they are one product."""
    found = facts[program]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["temporaries"] <= rows * LOGITS + 8 * MIB
    assert found["kernels"] <= kernels


def test_a_drafter_costs_the_sampler_one_kernel(facts: FactsByProgram) -> None:
    assert facts["sample_for_drafter"]["kernels"] <= facts["sample_greedy_guesses"]["kernels"] + 1
    assert facts["sample_for_drafter"]["aliased"] == facts["sample_for_drafter"]["donated"]


# --- a draft model of two layers, 4 guesses -----------------------------------------------------------------------


@pytest.mark.parametrize("program", ["draft_1", "draft_16", "draft_16_tp8"])
def test_all_guesses_of_a_draft_model_are_one_launch_on_caches_in_place(facts: FactsByProgram, program: str) -> None:
    """Each is two layers of 8 kernels and the head."""
    found = facts[program]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"]
    assert found["temporaries"] <= 16 * LOGITS + 8 * MIB
    assert found["kernels"] <= 4 * 2 * 8 + 60


def test_many_guesses_are_a_loop_on_caches_in_place(facts: FactsByProgram) -> None:
    found = facts["draft_in_a_loop"]
    assert found["copies"] == found["rewrites"] == [] and found["aliased"] == found["donated"]
    assert found["launched"].count("While") == 1 and found["kernels"] < facts["draft_16"]["kernels"]


def test_a_draft_model_reads_as_a_step_does(facts: FactsByProgram) -> None:
    found = facts["draft_reading"]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"]
    assert found["kernels"] < facts["mixed"]["kernels"]


# --- EAGLE-3's layer, 4 guesses of 32,000 ids ----------------------------------------------------------------------


@pytest.mark.parametrize("step", ["decode_1", "decode", "mixed", "decode_tp8"])
def test_features_cost_a_step_a_few_kernels_and_no_copy(facts: FactsByProgram, step: str) -> None:
    """Three sums of the residual stream, their product, and where it is written; none in another step."""
    rows, _, split = step.partition("_")
    plain = facts["decode_4_layers" if step == "decode" else step]
    found = facts[f"{step}_for_eagle" if split != "tp8" else f"{rows}_for_eagle_tp8"]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"] > plain["donated"]
    assert found["kernels"] <= plain["kernels"] + 6
    assert found["collectives"] == plain["collectives"]


@pytest.mark.parametrize("program", ["eagle_1", "eagle_16", "eagle_16_tp8"])
def test_all_guesses_of_eagle_are_one_launch_on_caches_in_place(facts: FactsByProgram, program: str) -> None:
    """Each is a layer of 8 kernels and two norms, and the head."""
    found = facts[program]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"]
    assert found["temporaries"] <= 16 * LOGITS + 8 * MIB
    assert found["kernels"] <= 4 * 10 + 60


def test_eagle_reads_prompts_on_caches_in_place(facts: FactsByProgram) -> None:
    found = facts["eagle_reading"]
    assert found["copies"] == found["rewrites"] == [] and found["launched"] == ["CommandBuffer"]
    assert found["aliased"] == found["donated"]
    assert found["kernels"] < facts["mixed"]["kernels"]
