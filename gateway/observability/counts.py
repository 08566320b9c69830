"""Values of counters and histograms at one moment, without the work of wording them for a scrape."""

from collections import defaultdict
from collections.abc import Mapping

# Where a value belongs within its series: the upper bound of a histogram's bucket, over all labels, or a counter's
# label values in the order of the labels' names.
Place = float | tuple[str, ...]
NOT_KEPT = ("_sum", "_count", "_created")  # how samples' names end


class Counts:
    """Sums over HTTP processes, by a series' name and a value's place; the buckets of histograms are not cumulative."""

    def __init__(self) -> None:
        self._values: defaultdict[str, defaultdict[Place, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, name: str, place: Place, value: float) -> None:
        self._values[name][place] += value

    def total(self, name: str, label: str | None = None) -> float:
        """The sum of a counter's series, or of those that have the label value `label`."""
        return sum(value for place, value in self._of(name).items() if label is None or label in _labels(place))

    def buckets(self, name: str) -> dict[float, float]:
        """Observations of a histogram by the upper bound of their bucket, in its order."""
        return dict(sorted((bound, value) for bound, value in self._of(name).items() if isinstance(bound, float)))

    def _of(self, name: str) -> Mapping[Place, float]:
        return self._values.get(name, {})


def place(name: str, sample: str, labels: Mapping[str, str]) -> Place | None:
    """Where a value of the series `name` belongs that is written as `sample`; None if it is not kept."""
    if sample == f"{name}_bucket":
        return float(labels["le"])
    if sample.endswith(NOT_KEPT) and sample != name:
        return None
    return tuple(labels[label] for label in sorted(labels))


def _labels(place: Place) -> tuple[str, ...]:
    return place if isinstance(place, tuple) else ()
