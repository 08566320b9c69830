"""Percentiles of what happened lately, from histograms that count since the start."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from gateway.observability.counts import Counts

SHARES = (0.5, 0.95, 0.99)
Percentiles = tuple[float, float, float]  # of SHARES


class Window:
    """The last `seconds` of histograms `names`.

    Args:
        seconds: how far back observations count.
    """

    def __init__(self, names: Sequence[str], seconds: float) -> None:
        self._names, self._seconds = names, seconds
        self._marks: deque[tuple[float, dict[str, dict[float, float]]]] = deque()

    def advance(self, now: float, counts: Counts) -> dict[str, Percentiles | None]:
        """Take note of the counts at `now`, in seconds of a monotonic clock. Returns the percentiles of each name, None
        for one that has no observation within the window.
        """
        self._marks.append((now, {name: counts.buckets(name) for name in self._names}))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._seconds:
            self._marks.popleft()
        (_, oldest), (_, newest) = self._marks[0], self._marks[-1]
        return {name: percentiles(_added(oldest[name], newest[name])) for name in self._names}


def percentiles(buckets: Mapping[float, float]) -> Percentiles | None:
    """The percentiles `SHARES` of observations by the upper bounds of their buckets, in ascending order.

    Within a bucket, observations count as spread evenly; the first one begins at 0. Those beyond the last finite bound
    count as that bound, as Prometheus has it. None if there are none.
    """
    total = sum(buckets.values())
    if total <= 0:
        return None
    median, high, highest = (_quantile(buckets, share * total) for share in SHARES)
    return median, high, highest


def _quantile(buckets: Mapping[float, float], rank: float) -> float:
    """The value that `rank` observations do not exceed."""
    lower, below = 0.0, 0.0
    for upper, count in buckets.items():
        if count > 0 and below + count >= rank:
            return lower if math.isinf(upper) else lower + (upper - lower) * (rank - below) / count
        below += count
        lower = lower if math.isinf(upper) else upper
    return lower


def _added(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
