"""A model split over devices answers as it does on one, and each device holds its part only."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.jaxengine.tensor_parallel import DEVICES
from tests.tiny import write_tiny

HEADS, FFN = 8, 96
split = pytest.mark.parametrize("devices", DEVICES[1:])


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program prints about a model of eight key/value heads, on a machine of eight devices."""
    heads = {"num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS, "head_dim": 8, "intermediate_size": FFN}
    directory = write_tiny(tmp_path_factory.mktemp("tp"), "llama2_gqa", **heads)
    few_heads = write_tiny(tmp_path_factory.mktemp("few"), "llama2_gqa", **{**heads, "num_key_value_heads": 2})
    program = [sys.executable, "-m", "tests.jaxengine.tensor_parallel", str(directory), str(few_heads)]
    xla = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"  # half the time to compile
    flags = {"XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(program, env={**os.environ, **flags}, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@split
def test_the_answers_are_those_of_one_device(outcome: dict[str, Any], devices: int) -> None:
    one, many = outcome["reports"]["1"], outcome["reports"][str(devices)]
    assert many["device_count"] == devices
    assert many["ids"] == one["ids"]
    assert many["logprobs"] == pytest.approx(one["logprobs"], abs=1e-3)


@split
def test_each_device_holds_its_heads_of_the_cache(outcome: dict[str, Any], devices: int) -> None:
    report = outcome["reports"][str(devices)]
    for name in ("keys", "values"):
        pages, page_size, heads, dim = report["shape"][name]
        assert (heads, report["shard"][name]) == (HEADS, [pages, page_size, HEADS // devices, dim])


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
    assert (one["shape"]["keys"][2], eight["shape"]["keys"][2], eight["shard"]["keys"][2]) == (2, 8, 1)


def test_heads_that_do_not_divide_are_refused(outcome: dict[str, Any]) -> None:
    assert outcome["refusals"]["3"] == "num_kv_heads 8 cannot be split over 3 devices"


def test_more_devices_than_visible_are_refused(outcome: dict[str, Any]) -> None:
    assert outcome["refusals"]["16"] == "tensor parallelism over 16 devices asked for, 8 visible"
