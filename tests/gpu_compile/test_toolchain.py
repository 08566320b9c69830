"""Two processes that share the tests share what a program finds, part by part."""

from functools import partial
from pathlib import Path

import pytest

from tests import shared_cache
from tests.gpu_compile import sources, toolchain

PROGRAM = "tests.gpu_compile.programs"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cache, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "_noted", set())


def in_worker(number: int, run: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that a worker makes itself, in their order."""
    made: list[str] = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", run)
    answers = toolchain.made_in_turn(PROGRAM, {name: partial(made.append, name) for name in "abc"})
    assert answers == dict.fromkeys("abc")
    return made


def test_a_part_is_made_once_in_a_run_from_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [in_worker(number, "one", monkeypatch) for number in (1, 0)] == [["c", "b", "a"], []]
    assert in_worker(0, "two", monkeypatch) == ["a", "b", "c"]


def test_what_the_other_read_counts_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one")
    own = sources.made_of(PROGRAM)
    monkeypatch.setattr(toolchain, "found", lambda kind, key, make: {"made": 1, "of": ["elsewhere.py"]})
    assert toolchain.made_in_turn(PROGRAM, {"a": int}) == {"a": 1}
    assert set(sources.made_of(PROGRAM)) == {*own, "elsewhere.py"}
