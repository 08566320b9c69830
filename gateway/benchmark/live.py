"""What is shown while runs go on, on standard error: a table that grows, with `rich` on a terminal, else lines."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TextIO

from gateway.benchmark.names import NAMES, number
from gateway.benchmark.report import Load

KEPT = 16  # levels that the table shows, the latest


class Live(Protocol):
    def show(self, load: Load, run: int, measures: Mapping[str, float]) -> None:
        """One more run of a load has ended."""
        ...

    def __enter__(self) -> "Live": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def live(runs: int, stream: TextIO | None = None) -> Live:
    """runs: of each load."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        try:
            return RichTable(runs)
        except ImportError:
            pass
    return Lines(runs, stream)


class Lines:
    """A line for each run."""

    def __init__(self, runs: int, stream: TextIO) -> None:
        self._runs, self._stream = runs, stream

    def show(self, load: Load, run: int, measures: Mapping[str, float]) -> None:
        shown = ", ".join(f"{NAMES[name]} {number(value)}" for name, value in measures.items() if name in NAMES)
        print(f"{load.kind} {load}, run {run} of {self._runs}: {shown}", file=self._stream, flush=True)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class RichTable:
    """The latest run of each load. Raises ImportError without `rich`, which is an extra."""

    def __init__(self, runs: int) -> None:
        from rich.console import Console
        from rich.live import Live as Display

        self._runs = runs
        self._rows: dict[str, tuple[Load, int, Mapping[str, float]]] = {}
        self._display: Any = Display(console=Console(stderr=True), auto_refresh=False, transient=True)

    def show(self, load: Load, run: int, measures: Mapping[str, float]) -> None:
        self._rows[str(load)] = load, run, measures
        self._display.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.table import Table

        rows = list(self._rows.values())[-KEPT:]
        names = [name for name in NAMES if any(name in measures for _, _, measures in rows)]
        table = Table(box=None)
        for title in (rows[-1][0].kind, "run", *(NAMES[name] for name in names)):
            table.add_column(title, justify="right", overflow="fold")
        for load, run, measures in rows:
            cells = (number(measures[name]) if name in measures else "" for name in names)
            table.add_row(str(load), f"{run}/{self._runs}", *cells)
        return table

    def __enter__(self) -> "RichTable":
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()
