"""The runtime directory: private, of one server, removed with it, or by the next server if it was killed."""

from pathlib import Path

import pytest

from gateway.processes import runtime_directory as module
from gateway.processes.runtime_directory import LOCK, runtime_directory
from jaxengine.rpc.transport import make_private


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIES", 3)


def abandon(directory: Path) -> Path:
    """Make a directory as a killed server leaves it."""
    directory.mkdir(mode=0o700)
    for name in (LOCK, "engine.sock", "counters"):
        (directory / name).touch()
    return directory


def test_it_is_private_and_goes_with_its_server(tmp_path: Path) -> None:
    with runtime_directory(tmp_path / "deep" / "s", 1) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "engine.sock").touch()
    assert not directory.exists()


def test_what_a_killed_server_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    left, same_port = abandon(tmp_path / "s-1"), abandon(tmp_path / "s-2")
    with runtime_directory(tmp_path / "s", 2) as directory:
        assert not left.exists()
        assert directory == same_port and [each.name for each in directory.iterdir()] == [LOCK]


def test_directories_in_use_and_those_of_others_are_left_alone(tmp_path: Path) -> None:
    abandon(tmp_path / "s-notes")
    abandon(tmp_path / "s-3").chmod(0o755)
    (tmp_path / "t-1").mkdir()
    abandon(tmp_path / "elsewhere")
    (tmp_path / "s-4").symlink_to(tmp_path / "elsewhere")
    with runtime_directory(tmp_path / "s", 1) as first:
        (first / "engine.sock").touch()
        with runtime_directory(tmp_path / "s", 2):
            assert (first / "engine.sock").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"s-notes", "s-3", "t-1", "elsewhere", "s-4"}
    assert all((tmp_path / name / "counters").exists() for name in ("s-notes", "s-3", "elsewhere"))


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with runtime_directory(tmp_path / "s", 1) as first:
        with (
            pytest.raises(ValueError, match=r"another server uses .*s-1: .*--shard-uds-path"),
            runtime_directory(tmp_path / "s", 1),
        ):
            pass
        assert first.exists()


def test_a_directory_that_is_removed_at_this_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(directory: Path) -> None:
        make_private(directory)
        made.append(directory)
        if len(made) == 1:
            directory.rmdir()

    monkeypatch.setattr(module, "make_private", make)
    with runtime_directory(tmp_path / "s", 1) as directory:
        assert (directory / LOCK).exists() and len(made) == 2


def test_a_directory_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s-1").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="mode 0700"), runtime_directory(tmp_path / "s", 1):
        pass


def test_a_path_too_long_for_its_socket_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 107 are possible"), runtime_directory(tmp_path / ("s" * 107), 1):
        pass
    assert not list(tmp_path.iterdir())
