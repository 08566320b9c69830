"""Where a section writes what it measured: one JSON line a row, at once, so that a killed one keeps what it had."""

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class Record:
    path: Path

    def add(self, table: str, **row: Any) -> None:
        line = json.dumps({"table": table, **row})
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of a section; an error inside becomes a row of "errors", and the next part runs."""
        start = time.perf_counter()
        with self.attempt(name):
            yield
        self.add("parts", part=name, seconds=time.perf_counter() - start)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """`part`, untimed."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add("errors", part=name, error=one_line(error))


def one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:400]


def read(path: Path) -> Tables:
    """The rows of every table, in the order they were written."""
    tables: Tables = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        tables.setdefault(row.pop("table"), []).append(row)
    return tables
