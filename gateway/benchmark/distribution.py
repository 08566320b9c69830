"""Of many numbers, those that a table shows. Percentiles are numpy's default: linear between the two nearest ranks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Distribution:
    """`deviation` is that of the numbers themselves, as `numpy.std`."""

    count: int
    mean: float
    deviation: float
    lowest: float
    highest: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Distribution | None":
        """None of no numbers."""
        ordered = sorted(numbers)
        if not ordered:
            return None
        mean = math.fsum(ordered) / len(ordered)
        deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in ordered) / len(ordered))
        quantiles = (percentile(ordered, share) for share in (50, 90, 99))
        return cls(len(ordered), mean, deviation, ordered[0], ordered[-1], *quantiles)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of numbers in ascending order, at least one; `share` in percent."""
    place = (len(ordered) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
