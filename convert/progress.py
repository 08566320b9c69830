"""How far slow work has come: a bar with rate and remaining time on a terminal, else a line as it begins, then others.

The hub's library takes such a class too, so that a fetch looks like a conversion.
"""

import os
import sys
import time
from typing import Any

from tqdm import tqdm

from convert.announce import announce

LINE_SECONDS = 15.0  # between two lines about the same work
NO_BARS = "TQDM_DISABLE"  # set where stderr must hold nothing but log lines


class Progress(tqdm):  # type: ignore[type-arg, unused-ignore]
    """A tqdm that says the same in log lines where there is no terminal."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._lines = not sys.stderr.isatty() or bool(os.environ.get(NO_BARS))
        self._said: float | None = None  # moment of the latest line
        super().__init__(*args, **{"file": sys.stderr, "dynamic_ncols": True, "disable": False, **options})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if not self.total:
            return
        if not self._lines:
            super().display(msg, pos)
        elif self.n < self.total:
            self._say()

    def close(self) -> None:
        if not self.disable and (self._lines or not self.total):
            self.leave = False  # else the bar's last state, or an empty line, is written
        super().close()

    def _say(self) -> None:
        now = time.monotonic()
        if self._said is None or now - self._said >= LINE_SECONDS:
            what = f"{self._counted(self.total)}" if self._said is None else self._measured()
            announce(f"{self.desc.removesuffix(': ')} {what}")
            self._said = now

    def _measured(self) -> str:
        """How much, how fast, and how much longer."""
        rate = self.n / max(self.format_dict["elapsed"], 1e-9)
        left = f", {(self.total - self.n) / rate:.0f} s left" if rate else ""
        return f"{self._counted(self.n)} of {self._counted(self.total)}, {self._counted(rate)}/s{left}"

    def _counted(self, number: float) -> str:
        return megabytes(number) if self.unit == "B" else f"{number:.4g} x {self.unit}"


class FetchProgress(Progress):
    """The one bar of a fetch: the hub's library has another for files, and for what comes over the network.

    Its total grows while files are begun, so a first line has to come from who knows how much there is.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        others = options.get("unit") != "B" or options.get("desc") == "Downloading bytes"
        for name in ("bar_format", "name"):
            options.pop(name, None)
        super().__init__(*args, **{**options, "desc": "fetching", "disable": others})
        self._said = time.monotonic()

    def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
        """The description stays. The hub says by it when all is there, and leaves the bar open."""
        if desc and "complete" in desc and "incomplete" not in desc:
            self.close()

    def set_description_str(self, desc: str | None = None, refresh: bool | None = True) -> None:
        """The description stays."""

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """The rate is shown already."""


class NoProgress(Progress):
    """Nothing is shown."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("name", None)
        super().__init__(*args, **{**options, "disable": True})


def megabytes(octets: float) -> str:
    return f"{octets / 1e6:.0f} MB" if octets >= 1e7 else f"{octets / 1e6:.2g} MB"
