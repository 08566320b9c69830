"""What is kept between test runs is made anew when, and only when, something that it depends on has changed."""

import os
import time
from pathlib import Path

import pytest

from tests import shared_cache


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_cache, "ROOT", tmp_path / "cache")
    monkeypatch.setattr(shared_cache, "CHECKOUT", tmp_path)
    for name in ("read.py", "later.py", "other.py"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_an_answer_lasts_as_long_as_the_files_that_it_names(checkout: Path) -> None:
    made: list[list[str]] = []

    def answer(*files: str) -> int:
        def find() -> tuple[int, list[str]]:
            made.append(list(files))
            return len(made), list(files)

        return shared_cache.found_from_sources("facts", "key", find)  # type: ignore[no-any-return]

    assert [answer("read.py"), answer("read.py")] == [1, 1]
    (checkout / "other.py").write_text("changed")
    assert answer("read.py") == 1
    (checkout / "read.py").write_text("reads later.py too")
    assert [answer("read.py", "later.py"), answer()] == [2, 2]
    (checkout / "later.py").unlink()
    assert answer("read.py") == 3
    (checkout / "read.py").write_text("read.py")
    assert answer() == 1, "what it was made of before is known still"
    assert len(made) == 3


def test_an_answer_during_which_a_file_was_edited_is_not_kept(checkout: Path) -> None:
    def find() -> tuple[str, list[str]]:
        later = time.time() + 1
        os.utime(checkout / "read.py", (later, later))
        return "stale", ["read.py"]

    assert shared_cache.found_from_sources("facts", "key", find) == "stale"
    assert shared_cache.found_from_sources("facts", "key", lambda: ("fresh", ["other.py"])) == "fresh"


def test_two_keys_have_two_answers(checkout: Path) -> None:
    answers = [shared_cache.found_from_sources("facts", key, lambda key=key: (key, ["read.py"])) for key in "aba"]
    assert answers == ["a", "b", "a"]
