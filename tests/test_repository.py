"""The repository itself: lint, format and types are clean, and what the README promises is what CI runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("part", ["gateway", "jaxengine", "convert"])
def test_the_map_of_a_part_names_all_that_is_there_and_nothing_else(part: str) -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / part / "README.md").read_text()))
    inside = [path for path in (ROOT / part).iterdir() if path.is_dir() or path.suffix == ".py"]
    assert {path.name + "/" * path.is_dir() for path in inside if not path.name.startswith("__")} <= named
    assert all((ROOT / part / name).exists() or (ROOT / name).exists() for name in named)


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *PAGES])
def test_what_a_document_names_is_there(document: str) -> None:
    named = re.findall(r"`((?:gateway|jaxengine|convert|tests)/[\w./]*)`", (ROOT / document).read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("part", ["gateway", "jaxengine", "convert"])
def test_the_quick_part_has_tests_of_every_folder(part: str) -> None:
    tests = {path: path.read_text() for path in (ROOT / "tests" / part).rglob("test_*.py")}
    quick = {path.parent for path, text in tests.items() if "\npytestmark = pytest.mark.slow" not in text}
    assert {path.parent for path in tests} == quick


def test_the_readme_fits_a_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60
