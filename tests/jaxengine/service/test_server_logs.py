"""What the engine process writes to stderr, as the operator's log collector reads it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT


@pytest.mark.parametrize("number", [None, 1])
def test_under_json_output_a_model_that_is_not_there_is_one_json_line(tmp_path: Path, number: int | None) -> None:
    """It carries the number of the engine, if that is one of several."""
    flags = ["--json-output", f"--uds-path={tmp_path}/private/engine.sock", f"--model-id={tmp_path}/nothing"]
    flags += [] if number is None else [f"--replica={number}"]
    command = [sys.executable, "-m", "convert.cli", "serve", *flags]
    environment = {"PYTHONPATH": str(ROOT), "TEXT_GENERATION_ENGINE_TOKEN": "secret", "PATH": "/usr/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    [line] = [json.loads(each) for each in done.stderr.splitlines()]
    assert done.returncode == 2
    assert line["level"] == "CRITICAL" and f"{tmp_path}/nothing" in line["message"]
    assert line.get("engine") == number
