"""How far the engine's start has come: a bar with rate and remaining time on a terminal, else a line, then others."""

import logging
import re
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm

logger = logging.getLogger("gateway")

LINE_SECONDS = 15.0  # between two lines about the same thing
COUNTED = re.compile(r"(.+) (\d+)/(\d+)( MB)?")
MB = 10**6


class StartProgress:
    """Shows the engine's progress lines, "compiling 3/8", "loading 3/8 MB" or words without a count, as they come.

    Args:
        engine: what log lines call it.
        stream: where bars are drawn, if it is a terminal; stderr if None.
        bars: False if even a terminal gets log lines, as with `--json-output`.
    """

    def __init__(self, stream: TextIO | None = None, *, engine: str = "engine", bars: bool = True) -> None:
        self._engine, self._stream = engine, stream or sys.stderr
        self._draw = bars and self._stream.isatty()
        self._topic = ""  # the latest line without its count
        self._began = 0.0  # moment of the topic's first line
        self._logged = 0.0  # moment of the latest log line
        self._bar: Any = None

    def show(self, line: str) -> None:
        counted = COUNTED.fullmatch(line)
        topic = counted[1] if counted else line
        if topic != self._topic:
            self.close()
            self._begin(topic, line, bar=counted is not None)
        elif not self._draw:
            self._log_again(line, counted)
        if self._draw and counted:
            self._advance(topic, int(counted[2]), int(counted[3]), counted[4] is not None)

    def close(self) -> None:
        """End the bar that is shown, if any."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _begin(self, topic: str, line: str, *, bar: bool) -> None:
        self._topic, self._began = topic, time.monotonic()
        if not (self._draw and bar):
            self._logged = self._began
            logger.info("%s: %s", self._engine, line)

    def _log_again(self, line: str, counted: re.Match[str] | None) -> None:
        now = time.monotonic()
        if now - self._logged >= LINE_SECONDS:
            self._logged = now
            logger.info("%s: %s%s", self._engine, line, remaining(counted, now - self._began) if counted else "")

    def _advance(self, topic: str, done: int, total: int, megabytes: bool) -> None:
        unit = MB if megabytes else 1
        if self._bar is None and done < total:
            form: dict[str, Any] = {"unit": "B", "unit_scale": True} if megabytes else {"unit": " steps"}
            self._bar = tqdm(total=total * unit, desc=topic, file=self._stream, dynamic_ncols=True, **form)
        if self._bar is not None:
            self._bar.update(done * unit - self._bar.n)
            if done == total:  # what comes next has no count, and may log
                self.close()


def remaining(counted: "re.Match[str]", seconds: float) -> str:
    """How fast it went for so many seconds, and how much longer it takes at that rate; "" if nothing is done yet."""
    done, total, unit = int(counted[2]), int(counted[3]), counted[4] or ""
    if not done or seconds <= 0:
        return ""
    rate = done / seconds
    return f", {rate:.3g}{unit}/s, {(total - done) / rate:.0f} s left"
