"""What a plan says that a step needs besides its arguments, beside what XLA says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_compile import toolchain
from tests.gpu_compile.temporaries import CASES, SEEING
from tests.jaxengine.capacity.configurations import LLAMA_8B, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return toolchain.facts("tests.gpu_compile.temporaries", tmp_path_factory)  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", CASES)
def test_the_estimate_is_near(told: dict[str, Any], model: str) -> None:
    """What is left out would be missing on the device; what is too much is lost to the cache."""
    found = {program: told[model][program] for program in ("prompts", "sampling") if program in told[model]}
    for program, each in found.items():
        ratio = each["estimate"] / each["xla"]
        assert 0.97 < ratio < 1.25, f"{program}: {ratio:.2f}"
    if CASES[model].sampled:
        assert 0.97 < told[model]["estimate"] / max(each["xla"] for each in found.values()) < 1.25


@pytest.mark.parametrize("model", SEEING)
def test_the_estimate_of_what_encodes_pictures_is_near(told: dict[str, Any], model: str) -> None:
    assert 0.97 < told[model]["estimate"] / told[model]["xla"] < 1.25


def plan_of(model: str, *arguments: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(toolchain.toolchain()), str(toolchain.ROOT)])
    command = [sys.executable, "-m", "convert.cli", "plan", model, "--devices", "h200", "--json", *arguments]
    environment = {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_estimate_is_near_with_adapters(told: dict[str, Any], tmp_path: Path) -> None:
    model = write(tmp_path, LLAMA_8B, num_hidden_layers=2)
    estimate, xla = (
        plan_of(model, "--enable-lora", *compile)["bytes_of_a_device"]["temporaries"] for compile in ([], ["--compile"])
    )
    assert xla > 1.3 * told["Llama-3.1-8B"]["prompts"]["xla"]
    assert 0.97 < estimate / xla < 1.25


def test_a_plan_that_compiles_says_what_xla_says(told: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(write(tmp_path, LLAMA_8B, num_hidden_layers=2), "--compile")
    assert plan["temporaries_compiled"] is True
    xla = max(told["Llama-3.1-8B"][program]["xla"] for program in ("prompts", "sampling"))
    assert plan["bytes_of_a_device"]["temporaries"] == pytest.approx(xla, rel=0.001)
