"""Counts that several HTTP processes keep together, in memory they share.

Each process writes its own row and reads everybody's, so there is no lock, and nobody waits for one that has stopped.
Between reading a total and adding to it another process may add too: limits over several processes can be passed by
as many requests as there are other processes. What a process that died had counted, the launcher takes out.
"""

import mmap
import os
from pathlib import Path

ACTIVE, QUEUED_TOKENS, ABSENT, HELD = range(4)  # columns; from HELD on two blocks, each with one for each caller
NANOSECONDS = 10**9


class SharedCounters:
    """Rows of processes; as made, of one that is alone.

    Args:
        callers: how many may be told apart.
        row: of this process.
        rows: of all.
        file: what the processes share, made by `create`.
    """

    def __init__(self, callers: int = 1, *, row: int = 0, rows: int = 1, file: Path | None = None) -> None:
        self.callers = max(1, callers)
        self._booked = HELD + self.callers
        self._width = self._booked + self.callers
        self._rows, self._row = rows, row
        self._cells = memoryview(_map(file, self.size) if file else bytearray(self.size)).cast("q")

    @classmethod
    def create(cls, file: Path, rows: int, callers: int) -> "SharedCounters":
        """The launcher's, of row 0; every other process counts as absent."""
        with file.open("xb") as empty:
            empty.truncate(cls(callers, rows=rows).size)
        counters = cls(callers, rows=rows, file=file)
        for row in range(1, rows):
            counters.clear(row)
        return counters

    @property
    def size(self) -> int:
        return 8 * self._rows * self._width

    @property
    def active(self) -> int:
        """Permits held."""
        return self._total(ACTIVE)

    @property
    def queued_tokens(self) -> int:
        return self._total(QUEUED_TOKENS)

    @property
    def complete(self) -> bool:
        """Whether every process can serve."""
        return not self._total(ABSENT)

    def held(self, caller: int) -> int:
        """Permits of one caller."""
        return self._total(HELD + caller)

    def booked(self, caller: int) -> float:
        """The moment (monotonic, which all processes share) up to which one caller's refused requests were promised
        permits."""
        return max(self._cells[self._booked + caller :: self._width]) / NANOSECONDS

    def book(self, caller: int, moment: float) -> None:
        self._cells[self._row * self._width + self._booked + caller] = int(moment * NANOSECONDS)

    def hold(self, permits: int, caller: int) -> None:
        """Take permits, or give back where negative."""
        self._add(ACTIVE, permits)
        self._add(HELD + caller, permits)

    def queue(self, tokens: int) -> None:
        self._add(QUEUED_TOKENS, tokens)

    def absent(self, absent: bool) -> None:
        self._cells[self._row * self._width + ABSENT] = absent

    def clear(self, row: int) -> None:
        """Forget a process that is not there."""
        begin = row * self._width
        for cell in range(begin, begin + self._width):
            self._cells[cell] = 0
        self._cells[begin + ABSENT] = 1

    def _total(self, column: int) -> int:
        return sum(self._cells[column :: self._width])

    def _add(self, column: int, amount: int) -> None:
        self._cells[self._row * self._width + column] += amount


def _map(file: Path, size: int) -> mmap.mmap:
    descriptor = os.open(file, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
