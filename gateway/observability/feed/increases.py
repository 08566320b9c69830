"""How much counters have grown, from one look to the next and lately."""

from collections import deque
from collections.abc import Hashable


class Increases:
    """Since the previous look at each counter."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def of(self, counter: Hashable, value: float) -> float | None:
        """The increase to `value`; None at the first look. A counter that has fallen began anew from 0."""
        last = self._last.get(counter)
        self._last[counter] = value
        if last is None:
            return None
        return value - last if value >= last else value


class RecentShare:
    """Of what two counters have grown by in the last `seconds`, the second as a share of the first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grown: deque[tuple[float, float, float]] = deque()  # when, the whole, the part

    def advance(self, now: float, whole: float, part: float) -> float | None:
        """Take note of two increases at `now`, in seconds of a monotonic clock. None if the whole has not grown."""
        self._grown.append((now, whole, part))
        while self._grown[0][0] <= now - self._seconds:
            self._grown.popleft()
        total = sum(each for _, each, _ in self._grown)
        return sum(each for _, _, each in self._grown) / total if total > 0 else None
