"""Every family over two devices, with other sizes and weights than on one device. About a second for each."""

import json
import os
import subprocess
import sys

import pytest

from tests import xla
from tests.families.two_devices import families

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    program = [sys.executable, "-m", "tests.families.two_devices", str(tmp_path_factory.mktemp("two"))]
    done = subprocess.run(program, env={**os.environ, **xla.devices(2)}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", families().values())
def test_logits_over_two_devices_are_the_reference_s(outcome: dict[str, tuple[float, float]], name: str) -> None:
    difference, spread = outcome[name]
    assert difference < 1e-3 and spread > 0.5
