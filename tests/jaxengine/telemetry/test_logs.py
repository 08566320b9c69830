"""Log lines on a terminal, where a bar may be drawn."""

import io
import logging

import pytest

from jaxengine.telemetry.logs import LineHandler, wipe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_line_wipes_out_a_bar_on_a_terminal_and_is_bare_in_a_file(stream: io.StringIO) -> None:
    LineHandler(stream).emit(logging.LogRecord("gateway", logging.INFO, "", 0, "listening", (), None))
    assert stream.getvalue() == wipe(stream) + "listening\n"
    assert bool(wipe(stream)) is stream.isatty()


def test_a_line_for_a_stream_that_is_closed_is_lost_as_logging_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # or it says so on stderr
    (stream := io.StringIO()).close()
    LineHandler(stream).handle(logging.LogRecord("gateway", logging.INFO, "", 0, "listening", (), None))
