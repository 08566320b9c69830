"""A model split over devices answers as it does on one, and each device holds its part only."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import xla
from tests.eagle import Kind, TinyEagle
from tests.families.seq2seq import write_seq2seq
from tests.families.zoo import ZOO
from tests.jaxengine.tensor_parallel import DEVICES
from tests.tiny import VOCAB, write_model, write_tiny
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

HEADS, FFN = 8, 96
EXPERTS = {"num_attention_heads": 8, "num_key_value_heads": 8, "moe_intermediate_size": 36}
split = pytest.mark.parametrize("devices", DEVICES[1:])


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program prints about a model of eight key/value heads, on a machine of eight devices."""
    heads = {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS, "head_dim": 8, "intermediate_size": FFN}
    directory = write_tiny(tmp_path_factory.mktemp("tp"), "llama2_gqa", **heads)
    few_heads = write_tiny(tmp_path_factory.mktemp("few"), "llama2_gqa", **{**heads, "num_key_value_heads": 2})
    experts = write_model(tmp_path_factory.mktemp("moe") / "qwen2_moe", {**ZOO["qwen2_moe"], **EXPERTS})
    encoder = write_seq2seq(tmp_path_factory.mktemp("encoder"), "flan_t5")
    states = write_model(tmp_path_factory.mktemp("states") / "falcon_mamba", ZOO["falcon_mamba"])
    adapters = tmp_path_factory.mktemp("adapters")
    for number in range(3):
        adapted(few_heads, seed=number, r=2 + number).save_pretrained(adapters / f"a{number}")
    made = TinyEagle(Kind((0, 2), kv_heads=4, own_head=True, draft_vocab=200), 64, VOCAB)
    eagle = made.write(tmp_path_factory.mktemp("eagle"))
    linear = write_model(tmp_path_factory.mktemp("linear") / "qwen3_5", ZOO["qwen3_5"])
    models = map(str, (directory, few_heads, experts, encoder, states, adapters, eagle, linear))
    program = [sys.executable, "-m", "tests.jaxengine.tensor_parallel", *models]
    done = subprocess.run(program, env={**os.environ, **xla.devices(8)}, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@split
def test_the_answers_are_those_of_one_device(outcome: dict[str, Any], devices: int) -> None:
    one, many = outcome["reports"]["1"], outcome["reports"][str(devices)]
    assert many["device_count"] == devices
    assert many["ids"] == one["ids"]
    assert many["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    assert many["beams"] == one["beams"] and len(many["beams"]) == 2
    assert many["scores"] == pytest.approx(one["scores"], abs=1e-3)


@pytest.mark.parametrize("of", ["attention", "states"])
def test_drafts_verified_on_two_devices_change_no_answer(outcome: dict[str, Any], of: str) -> None:
    one, two = outcome["reports"]["1"], outcome["speculated"]
    if of == "states":
        one, two = outcome["linear"]["1"], outcome["linear"]["2"]
    assert two["ids"] == one["ids"] and two["accepted"] > 6
    assert two["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)


@split
def test_each_device_holds_its_heads_of_the_cache(outcome: dict[str, Any], devices: int) -> None:
    report = outcome["reports"][str(devices)]
    for name in ("keys", "values"):
        layers, pages, page_size, heads, dim = report["shape"][name]
        assert (heads, report["shard"][name]) == (HEADS, [layers, pages, page_size, HEADS // devices, dim])


@split
def test_each_device_holds_its_part_of_the_weights(outcome: dict[str, Any], devices: int) -> None:
    """All but the norms, which every device needs whole, is split."""
    report = outcome["reports"][str(devices)]
    assert report["weights_held"] == pytest.approx(1 / devices, abs=0.01)
    assert 320 // devices in report["shard"]["head"]


def test_two_heads_are_copied_for_eight_devices(outcome: dict[str, Any]) -> None:
    one, eight = outcome["copied"]["1"], outcome["copied"]["8"]
    assert eight["ids"] == one["ids"]
    assert eight["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    assert (one["shape"]["keys"][3], eight["shape"]["keys"][3], eight["shard"]["keys"][3]) == (2, 8, 1)


@pytest.mark.parametrize("devices", [2, 8])
def test_adapters_are_split_as_their_matrices_are_and_answer_as_on_one_device(
    outcome: dict[str, Any], devices: int
) -> None:
    """Over 8 devices each of two heads is copied, and what an adapter adds to it."""
    one, many = outcome["adapters"]["1"], outcome["adapters"][str(devices)]
    assert len({tuple(ids) for ids in one["ids"]}) == 4
    assert many["ids"] == one["ids"]
    assert many["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    queries = 2 * HEADS // devices  # of a head
    assert [queries + 2, 2, 16, 1, 8] in many["shard"]  # b of qkv: [units, slots, rank, heads, dim]
    assert [2, 2, 16, FFN // devices] in many["shard"]  # of gate_up


@pytest.mark.parametrize("devices", [2, 4])
def test_experts_are_split_by_width_and_answer_as_on_one_device(outcome: dict[str, Any], devices: int) -> None:
    one, many = outcome["mixture"]["1"], outcome["mixture"][str(devices)]
    assert many["ids"] == one["ids"]
    assert many["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    assert many["weights_held"] == pytest.approx(1 / devices, abs=0.02)


def test_an_encoder_is_split_by_heads_and_answers_as_on_one_device(outcome: dict[str, Any]) -> None:
    one, two = outcome["encoder"]["1"], outcome["encoder"]["2"]
    assert two["ids"] == one["ids"]
    assert two["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    assert (two["shape"]["keys"][3], two["shard"]["keys"][3]) == (4, 2)


def test_experts_whose_width_does_not_divide_are_refused(outcome: dict[str, Any]) -> None:
    assert outcome["refusals"]["experts"] == "experts.ffn_size 36 cannot be split over 8 devices"


def test_a_channel_of_8_bit_weights_has_one_scale_however_its_inputs_are_split(outcome: dict[str, Any]) -> None:
    """Keys are cached in 8 bits here: sums in another order may put one on the other side of a step of an eighth."""
    one, four = outcome["few_bits"]["1"], outcome["few_bits"]["4"]
    assert four["ids"] == one["ids"]
    assert four["logprobs"] == pytest.approx(one["logprobs"], abs=0.05)
    assert four["weights_held"] == pytest.approx(1 / 4, abs=0.03)  # scales of `out` and `down` are whole


def test_a_channel_of_an_expert_in_8_bits_has_one_scale_however_its_inputs_are_split(outcome: dict[str, Any]) -> None:
    one, two = outcome["mixture_in_8_bits"]["1"], outcome["mixture_in_8_bits"]["2"]
    assert two["ids"] == one["ids"]
    assert two["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    assert two["weights_held"] == pytest.approx(1 / 2, abs=0.05)  # scales of `out` and `down` are whole


def test_each_of_two_devices_scans_half_the_channels(outcome: dict[str, Any]) -> None:
    one, two = outcome["states"]["1"], outcome["states"]["2"]
    assert two["ids"] == one["ids"]
    assert two["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)
    layers, pages, channels, states = two["shape"]["values"]
    assert (channels, two["shard"]["values"]) == (96, [layers, pages, 48, states])
    assert two["weights_held"] == pytest.approx(1 / 2, abs=0.01)


def test_heads_that_do_not_divide_are_refused(outcome: dict[str, Any]) -> None:
    assert outcome["refusals"]["3"] == "num_kv_heads 8 cannot be split over 3 devices"


def test_more_devices_than_visible_are_refused(outcome: dict[str, Any]) -> None:
    assert outcome["refusals"]["16"] == "tensor parallelism over 16 devices asked for, 8 visible"


def test_a_draft_model_is_split_and_guesses_what_it_does_on_one_device(outcome: dict[str, Any]) -> None:
    """One of 2 key/value heads on 4 devices, of which two hold each."""
    one, four = outcome["drafted"]["1"], outcome["drafted"]["4"]
    assert four["ids"] == one["ids"] == outcome["reports"]["1"]["ids"][:3]
    assert four["proposed"] == one["proposed"] and len(one["proposed"]) > 8
    assert four["shard"][3] == 1 and one["shard"][3] == 2


def test_eagles_layers_are_split_and_guess_what_they_do_on_one_device(outcome: dict[str, Any]) -> None:
    """Features are whole on each."""
    one, four = outcome["eagle"]["1"], outcome["eagle"]["4"]
    assert four["ids"] == one["ids"] == outcome["reports"]["1"]["ids"][:3]
    assert four["proposed"] == one["proposed"] and len(one["proposed"]) > 8
    assert four["shard"][3] == 1 and one["shard"][3] == 4
