"""Formats with groups are split over devices without a change: values, scales and zero points alike."""

import json
import os
import subprocess
import sys

import pytest

from tests import xla

pytestmark = pytest.mark.slow

SPLIT = {  # arrays of a layer: those of its four matrices, of which two have split inputs, and so a split order
    "four bits": 4 * 3,
    "eight bits in groups": 4 * 2,
    "table": 4 * 2,
    "sorted four bits": 4 * 3 + 2,
    "four bits, a scale a channel": 4 + 2,
    "int8": 4 + 2,
    "fp8": 4 + 2,
    "experts, four bits": 4 * 3,
    "experts, eight bits in groups": 4 * 2,
    "experts, four bits, a scale a channel": 4 + 2,
}


@pytest.mark.parametrize(
    ("devices", "formats"),
    [
        (2, ["four bits", "table", "sorted four bits", "four bits, a scale a channel"]),
        (2, ["eight bits in groups", "int8", "fp8"]),
        (8, ["eight bits in groups", "sorted four bits"]),
        (2, ["+sorted four bits"]),
        (2, ["experts, four bits", "experts, four bits, a scale a channel"]),
        (8, ["experts, four bits", "experts, eight bits in groups"]),
    ],
)
def test_logits_over_several_devices_are_those_of_one(devices: int, formats: list[str]) -> None:
    program = [sys.executable, "-m", "tests.jaxengine.weights.split_groups", str(devices), *formats]
    done = subprocess.run(
        program, env={**os.environ, **xla.devices(devices)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == formats
    for name, (off, split) in found.items():
        assert off < 1e-5, name
        assert split == SPLIT[name.removeprefix("+")], name
