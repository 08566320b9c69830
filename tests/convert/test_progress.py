"""Slow work is shown as a bar on a terminal, and in lines elsewhere."""

import io
from types import SimpleNamespace

import pytest

from convert import progress
from convert.progress import LINE_SECONDS, FetchProgress, NoProgress, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(progress, "announce", told.append)
    return told


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))  # pytest puts its own into sys
    return terminal


def test_a_terminal_gets_a_bar_with_its_rate(terminal: Terminal, lines: list[str]) -> None:
    with Progress(total=4_000_000, unit="B", unit_scale=True, desc="converting") as bar:
        bar.update(4_000_000)
    assert "converting: 100%" in terminal.getvalue() and "B/s]" in terminal.getvalue()
    assert not lines


def test_a_log_gets_one_line_while_it_is_quick(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(total=40_000_000, unit="B", desc="converting", mininterval=0) as bar:
        for _ in range(4):
            bar.update(10_000_000)
    assert lines == ["converting 40 MB"]
    assert capsys.readouterr().err == ""


def test_long_work_says_again_how_fast_it_is_and_how_much_longer_it_takes(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with Progress(total=600_000_000, unit="B", desc="converting", mininterval=0) as bar:
        bar._time = lambda: now
        now += LINE_SECONDS
        bar.update(150_000_000)
    assert lines == ["converting 600 MB", "converting 150 MB of 600 MB, 10 MB/s, 45 s left"]


def test_a_terminal_whose_log_is_for_machines_gets_lines(
    terminal: Terminal, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.NO_BARS, "1")
    for _ in Progress(range(3), unit="matrix", desc="quantising"):
        pass
    assert lines == ["quantising 3 x matrix"] and terminal.getvalue() == ""


def test_of_a_fetch_there_is_one_bar_which_ends_when_the_hub_says_so(terminal: Terminal) -> None:
    """As `snapshot_download` uses its class: a bar for files, and two for bytes, whose total grows."""
    files = FetchProgress(total=2, desc="Fetching 2 files")
    network = FetchProgress(total=0, unit="B", desc="Downloading bytes", bar_format="{n}")
    octets = FetchProgress(total=0, unit="B", unit_scale=True, desc="Reconstructing (incomplete total...)")
    octets.total += 5_000_000
    for bar in (files, network, octets):
        bar.update(bar.total)
    octets.set_description("Reconstruction complete")
    ended = terminal.getvalue()
    assert "fetching: 100%" in ended and "5.00M/5.00M" in ended and ended.endswith("\n")
    assert "Fetching" not in ended and "Reconstruct" not in ended and "Downloading" not in ended


def test_nothing_to_fetch_shows_nothing(terminal: Terminal) -> None:
    FetchProgress(total=0, unit="B", desc="Reconstructing").set_description("Reconstruction complete")
    NoProgress(total=5, unit="B", desc="Reconstructing", name="x").close()
    assert terminal.getvalue() == ""


def test_a_fetch_leaves_the_first_line_to_who_knows_how_much_there_is(lines: list[str]) -> None:
    octets = FetchProgress(total=0, unit="B", desc="Reconstructing", mininterval=0)
    octets.total += 2_000_000
    octets.update(1_000_000)
    assert lines == []
