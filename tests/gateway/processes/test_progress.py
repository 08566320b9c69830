"""Progress of the start: bars for people, lines for logs."""

import io
import logging

import pytest

from gateway.processes.progress import StartProgress


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


def test_machine_readable_logs_are_not_drawn_into() -> None:
    terminal = Terminal()
    StartProgress(terminal, bars=False).show("loading 1/2")
    assert terminal.getvalue() == ""
