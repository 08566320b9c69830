"""A directory appears whole at its place, whoever else writes there, and takes the place of nothing."""

from pathlib import Path

import pytest

from convert.cache import new_directory
from convert.errors import CheckpointError


def test_what_an_ended_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.tmp-1").mkdir()
    (tmp_path / ".out.tmp-1" / "half").touch()
    with new_directory(tmp_path / "out") as made:
        (made / "whole").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "whole").is_file()


def test_a_second_writer_is_refused_and_the_first_finishes(tmp_path: Path) -> None:
    """It would take the first one's files for those of an ended process."""
    with new_directory(tmp_path / "out") as first:
        (first / "file").touch()
        with pytest.raises(CheckpointError, match="out: another process writes it"), new_directory(tmp_path / "out"):
            pytest.fail("the second began")
        assert (first / "file").is_file()
    assert (tmp_path / "out" / "file").is_file()


def test_what_has_come_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"writing .*out: Directory not empty"), new_directory(tmp_path / "out"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").touch()
    assert (tmp_path / "out" / "precious").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out") as made:
        (made / "file").touch()
    assert (tmp_path / "out" / "file").is_file()
