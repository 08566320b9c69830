"""Counters that several HTTP processes keep together, in memory they share.

Each process writes its own row and reads all rows, so there is no lock, and no process waits for one that has stopped.
Between reading a total and adding to it, another process may add too: a limit over several processes can be exceeded
by as many requests as there are other processes. The launcher clears the row of a process that died.
"""

import mmap
import os
from pathlib import Path

from gateway.engine.replica import Turn

# Columns of a row. From HELD on: the permits held by each caller, the moment promised to each caller, which replicas
# the process does not reach, and, in the launcher's row alone, what the operator wants of each.
ACTIVE, QUEUED_TOKENS, NOT_READY, HELD = range(4)
NANOSECONDS = 10**9


class SharedCounters:
    """One row of counters for each HTTP process; by default the only row of the only process.

    Args:
        callers: number of callers that are told apart.
        replicas: number of engines.
        row: index of this process.
        rows: number of processes.
        file: the memory the processes share, made by `create`; None where there is one process.
    """

    def __init__(
        self, callers: int = 1, *, replicas: int = 1, row: int = 0, rows: int = 1, file: Path | None = None
    ) -> None:
        self.callers = max(1, callers)
        self._promised = HELD + self.callers
        self._unreached = self._promised + self.callers
        self._turns = self._unreached + replicas
        self._width = self._turns + replicas
        self._rows, self._row = rows, row
        self._cells = memoryview(_map(file, self.size) if file else bytearray(self.size)).cast("q")

    @classmethod
    def create(cls, file: Path, rows: int, callers: int, replicas: int = 1) -> "SharedCounters":
        """Make `file`. Returns the launcher's counters, row 0; every other process counts as not ready.

        Raises:
            OSError: it cannot be made, or the disk is full, which memory on it would tell by SIGBUS.
        """
        with file.open("xb") as empty:
            os.posix_fallocate(empty.fileno(), 0, cls(callers, replicas=replicas, rows=rows).size)
        counters = cls(callers, replicas=replicas, rows=rows, file=file)
        for row in range(1, rows):
            counters.clear(row)
        return counters

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return 8 * self._rows * self._width

    @property
    def active(self) -> int:
        """Permits held."""
        return self._total(ACTIVE)

    @property
    def queued_tokens(self) -> int:
        return self._total(QUEUED_TOKENS)

    @property
    def all_ready(self) -> bool:
        """Whether every process can serve."""
        return not self._total(NOT_READY)

    def held(self, caller: int) -> int:
        """Permits held by one caller."""
        return self._total(HELD + caller)

    def promised_until(self, caller: int) -> float:
        """The latest moment at which a refused request of `caller` was promised a permit, by any process.

        In seconds of the monotonic clock, which all processes share.
        """
        return max(self._cells[self._promised + caller :: self._width]) / NANOSECONDS

    def promise_until(self, caller: int, moment: float) -> None:
        self._cells[self._row * self._width + self._promised + caller] = int(moment * NANOSECONDS)

    def hold(self, permits: int, caller: int) -> None:
        """Take permits; a negative number gives them back."""
        self._add(ACTIVE, permits)
        self._add(HELD + caller, permits)

    def queue(self, tokens: int) -> None:
        """Add prompt tokens to those that wait; a negative number takes them out."""
        self._add(QUEUED_TOKENS, tokens)

    def set_ready(self, ready: bool) -> None:
        """Say whether this process can serve."""
        self._cells[self._row * self._width + NOT_READY] = not ready

    def reached(self, replica: int) -> bool:
        """Whether every process can send requests to a replica."""
        return not self._total(self._unreached + replica)

    def set_reached(self, replica: int, reached: bool) -> None:
        """Say whether this process can send requests to a replica."""
        self._cells[self._row * self._width + self._unreached + replica] = not reached

    def turn(self, replica: int) -> Turn:
        """What the operator wants of a replica."""
        return Turn(self._cells[self._turns + replica])

    def set_turn(self, replica: int, turn: Turn) -> None:
        """For the launcher's process."""
        self._cells[self._turns + replica] = turn

    def clear(self, row: int) -> None:
        """Forget what a process had counted that has ended, and count it as not ready: it reaches no replica."""
        begin = row * self._width
        for cell in range(begin, begin + self._width):
            self._cells[cell] = self._unreached <= cell - begin < self._turns
        self._cells[begin + NOT_READY] = 1

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
