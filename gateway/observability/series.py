"""Where the families of series are registered, and how a series is made."""

import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.observability.tally import OwnTally, SharedTally, Tally


class Registry:
    """The series of one HTTP process, or what all processes count together.

    Args:
        shared: directory of the values of all processes, if there are several.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.counted = CollectorRegistry(auto_describe=False)  # each process counts, a scrape shows the sums
        self._reported = CollectorRegistry(auto_describe=False)  # the engine counts and reports to every process
        self._shared = shared
        self._made: dict[str, Counter | Histogram] = {}

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        self._made[name] = made = Counter(name, text, labels, registry=self.counted)
        return made

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.counted, multiprocess_mode="mostrecent")

    def histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        self._made[name] = made = Histogram(name, text, labels, registry=self.counted, buckets=tuple(buckets))
        return made

    def tally(self, names: Collection[str]) -> Tally:
        """What reads the counters and histograms `names`, which have been made, again and again."""
        if self._shared is not None:
            return SharedTally(self._shared, names)
        return OwnTally(self._made[name] for name in names)

    def add_reported(self, collector: Collector) -> None:
        """Register what reads the engine's own counters."""
        self._reported.register(collector)

    def collect(self) -> Iterator[Metric]:
        """Every series with its values."""
        counted = self.counted if self._shared is None else MultiProcessCollector(None, str(self._shared))
        return itertools.chain(counted.collect(), self._reported.collect())
