"""Whole engines that see, over two devices: towers split by heads, a pool that both have all of."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import xla

pytestmark = pytest.mark.slow

NAMES = ("llava_next", "qwen2_5_vl", "gemma3", "mllama", "idefics")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    program = [sys.executable, "-m", "tests.families.seeing_two_devices", str(tmp_path_factory.mktemp("two")), *NAMES]
    done = subprocess.run(program, env={**os.environ, **xla.devices(2)}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_two_devices_see_what_transformers_does(outcome: dict[str, dict[str, Any]], name: str) -> None:
    assert outcome[name]["difference"] < 1e-3
    assert outcome[name]["greedy"] and not outcome[name]["late"]
