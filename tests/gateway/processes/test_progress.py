"""Progress of the start: bars for people, lines for logs."""

import io
import logging
import time

import pytest

from gateway.processes.progress import LINE_SECONDS, StartProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_a_stage() -> None:
    terminal = Terminal()
    progress = StartProgress(terminal)
    for line in ("loading 1/2", "loading 2/2", "compiling 1/3", "compiling 3/3"):
        progress.show(line)
    progress.close()
    assert "loading: 100%" in terminal.getvalue()
    assert "compiling: 100%" in terminal.getvalue()


def test_a_log_gets_one_line_a_stage_while_it_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    progress = StartProgress(io.StringIO())
    with caplog.at_level(logging.INFO, "gateway"):
        for line in ("fetching x", "loading 1/2", "loading 2/2", "compiling 1/3", "compiling 2/3"):
            progress.show(line)
    assert [record.getMessage() for record in caplog.records] == [
        "engine: fetching x",
        "engine: loading 1/2",
        "engine: compiling 1/3",
    ]


def test_a_bar_shows_bytes_and_ends_when_all_is_there() -> None:
    """What comes next may log, and takes its time."""
    terminal = Terminal()
    progress = StartProgress(terminal)
    for line in ("loading 0/269 MB", "loading 120/269 MB", "loading 269/269 MB"):
        progress.show(line)
    assert "269M/269M" in terminal.getvalue() and "B/s]" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


def test_a_long_stage_says_again_how_fast_it_is_and_how_much_longer_it_takes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([10.0, 12.0, 10.0 + LINE_SECONDS])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    progress = StartProgress(io.StringIO())
    with caplog.at_level(logging.INFO, "gateway"):
        for line in ("loading 0/600 MB", "loading 20/600 MB", "loading 150/600 MB"):
            progress.show(line)
    assert [record.getMessage() for record in caplog.records] == [
        "engine: loading 0/600 MB",
        "engine: loading 150/600 MB, 10 MB/s, 45 s left",
    ]


def test_of_several_engines_each_has_its_name_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway"):
        StartProgress(io.StringIO(), engine="engine 1").show("loading 0/2 MB")
    assert caplog.messages == ["engine 1: loading 0/2 MB"]


def test_machine_readable_logs_are_not_drawn_into() -> None:
    terminal = Terminal()
    StartProgress(terminal, bars=False).show("loading 1/2")
    assert terminal.getvalue() == ""
