"""The repository itself: lint, format and types are clean, and what the README promises is what CI runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=["lint", "format", "types"]
)
def test_the_sources_are_clean(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    in_readme = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert commands[:2] == ["set -euo pipefail", 'cd "$(dirname "$0")/.."']
    assert commands[2:] == [in_readme[-1]]


def test_the_readme_fits_a_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60
