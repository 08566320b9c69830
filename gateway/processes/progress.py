"""How far the engine's start has come: a progress bar on a terminal, a line every two seconds in a log."""

import logging
import re
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm

logger = logging.getLogger("gateway")

LINE_SECONDS = 2.0  # between two lines about the same thing


class StartProgress:
    """Shows the engine's progress lines, "compiling 3/8" or words without a count, as they come.

    Args:
        stream: where bars are drawn, if it is a terminal.
        bars: False if even a terminal gets log lines, as with `--json-output`.
    """

    def __init__(self, stream: TextIO = sys.stderr, *, bars: bool = True) -> None:
        self._stream = stream
        self._draw = bars and stream.isatty()
        self._topic = ""  # the latest line without its count
        self._logged = 0.0  # moment of the latest log line
        self._bar: Any = None

    def show(self, line: str) -> None:
        counted = re.fullmatch(r"(.+) (\d+)/(\d+)", line)
        topic = counted[1] if counted else line
        if not self._draw:
            self._log(topic, line)
        elif counted:
            self._advance(topic, int(counted[2]), int(counted[3]))
        elif topic != self._topic:
            self.close()
            logger.info("engine: %s", line)
        self._topic = topic

    def close(self) -> None:
        """End the bar that is shown, if any."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _log(self, topic: str, line: str) -> None:
        now = time.monotonic()
        if topic != self._topic or now - self._logged >= LINE_SECONDS:
            self._logged = now
            logger.info("engine: %s", line)

    def _advance(self, topic: str, done: int, total: int) -> None:
        if topic != self._topic or self._bar is None:
            self.close()
            self._bar = tqdm(total=total, desc=topic, file=self._stream, leave=True)
        self._bar.update(done - self._bar.n)
