"""Formats with groups are split over devices without a change: values, scales and zero points alike."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ARRAYS = {"four bits": 3, "eight bits in groups": 2, "table": 2, "sorted four bits": 3}  # of a matrix
MATRICES = 4  # of a layer, all of which are split
ORDERS = 2  # that are split: those of matrices whose inputs are


@pytest.mark.parametrize(
    ("devices", "formats"),
    [(2, ["four bits", "table", "sorted four bits"]), (8, ["eight bits in groups", "sorted four bits"])],
)
def test_logits_over_several_devices_are_those_of_one(devices: int, formats: list[str]) -> None:
    program = [sys.executable, "-m", "tests.jaxengine.weights.split_groups", str(devices), *formats]
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(program, env={**os.environ, **flags}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == formats
    for name, (off, split) in found.items():
        assert off < 1e-5, name
        assert split == MATRICES * ARRAYS[name] + (ORDERS if name.startswith("sorted") else 0), name
