"""Finds stop strings anywhere in the generated text, however it is split into tokens.

The stop string that ends first is the match; of several that end together, the longest. Matching depends on the
characters only, so every split of the same text gives the same result. Text that may be the beginning of a stop string
is held back, unless stop strings stay in the output.
"""

from bisect import bisect_right
from dataclasses import dataclass

MAX_STOP_CHARACTERS = 256  # of one stop string: each is searched for at every token


@dataclass(frozen=True, slots=True)
class Release:
    """Text that may be shown now, and the stop string that ends the generation, if there is one."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Searches the text of one sequence for `stops`, none of which is empty; with `keep` they stay in the output."""

    def __init__(self, stops: list[str], *, keep: bool) -> None:
        self._stops = stops
        self._keep = keep
        self._sorted = sorted(stops)
        self._firsts = {stop[0] for stop in stops}
        self._tail = ""  # the end of the text, in which a match may begin; with `keep` it is released
        self._longest = max(map(len, stops), default=0)

    def push(self, text: str, *, may_end: bool = True) -> Release:
        """Add `text`; a stop string that ends in it counts only if it `may_end`. After a match nothing may follow."""
        if not self._stops:
            return Release(text)
        buffer = self._tail + text
        match = self._first_match(buffer) if may_end else None
        if match is None:
            return self._hold_back(buffer, text)
        start, stop = match
        if self._keep:
            return Release(buffer[len(self._tail) : start + len(stop)], stop)
        return Release(buffer[:start], stop)

    def flush(self) -> str:
        """The text that is still held back, at the end of the sequence."""
        held = "" if self._keep else self._tail
        self._tail = ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        old = len(self._tail)  # a stop string that ends within the tail was allowed to pass
        ends = buffer[old:]
        possible = (stop for stop in self._stops if stop[-1] in ends)  # few, as a rule, of dozens
        found = [(at, stop) for stop in possible if (at := buffer.find(stop, max(0, old + 1 - len(stop)))) >= 0]
        return min(found, key=lambda match: (match[0] + len(match[1]), match[0]), default=None)

    def _hold_back(self, buffer: str, text: str) -> Release:
        if self._keep:
            self._tail = buffer[-(self._longest - 1) :] if self._longest > 1 else ""
            return Release(text)
        held = self._held_from(buffer)
        self._tail = buffer[held:]
        return Release(buffer[:held])

    def _held_from(self, buffer: str) -> int:
        """Where the longest end of `buffer` begins that is a beginning of a stop string, but not all of it."""
        for at in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[at] in self._firsts:
                end = buffer[at:]
                behind = bisect_right(self._sorted, end)  # where those longer ones stand that begin with `end`
                if behind < len(self._sorted) and self._sorted[behind].startswith(end):
                    return at
        return len(buffer)
