"""Stop strings: found anywhere in the generated text, whatever tokens it arrives in.

A match is the first end of any stop string in the text; of several that end together the longest counts. Matching
depends on the characters only, so every split of the same text gives the same result. What may still become a match
is held back unless the dialect keeps stop strings in the output, where nothing needs to wait.
"""

from dataclasses import dataclass

MAX_STOP_CHARACTERS = 256  # of one: it is looked for at every token


@dataclass(frozen=True, slots=True)
class Release:
    """Text that may be shown now, and the stop string that ended the generation, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Watches one sequence's text for `stops` (none of them empty)."""

    def __init__(self, stops: list[str], *, keep: bool) -> None:
        self._stops = stops
        self._keep = keep
        self._tail = ""  # unreleased text, or with `keep` the released end that a match may begin in
        self._longest = max(map(len, stops), default=0)

    def push(self, text: str, *, may_end: bool = True) -> Release:
        """Add `text`, in which a stop string `may_end`; after a match the caller must not push again."""
        if not self._stops:
            return Release(text)
        buffer = self._tail + text
        match = self._first_match(buffer) if may_end else None
        if match is None:
            return self._wait(buffer, text)
        start, stop = match
        if self._keep:
            return Release(buffer[len(self._tail) : start + len(stop)], stop)
        return Release(buffer[:start], stop)

    def flush(self) -> str:
        """The text held back for a match that never came."""
        held = "" if self._keep else self._tail
        self._tail = ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        old = len(self._tail)  # whatever ends within it was let pass
        found = [(at, stop) for stop in self._stops if (at := buffer.find(stop, max(0, old + 1 - len(stop)))) >= 0]
        return min(found, key=lambda match: (match[0] + len(match[1]), match[0]), default=None)

    def _wait(self, buffer: str, text: str) -> Release:
        if self._keep:
            self._tail = buffer[-(self._longest - 1) :] if self._longest > 1 else ""
            return Release(text)
        held = max(_overlap(buffer, stop) for stop in self._stops)
        self._tail = buffer[len(buffer) - held :]
        return Release(buffer[: len(buffer) - held])


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
