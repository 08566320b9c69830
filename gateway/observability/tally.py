"""What all HTTP processes have counted, read often.

A scrape words every series, which takes 5 ms, and 20 ms where several processes count. `Tally` reads a few series, in
under 1 ms. What several processes count lies in files that prometheus_client maps into memory, one for each process and
kind of series; an entry stays where it is, so each file is searched once and afterwards only its values are read.
"""

import json
import mmap
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observability.counts import Counts, Place, place

FILES = ("counter_*.db", "histogram_*.db")
HEAD_BYTES = 8  # how many bytes of the file are in use, and padding
INTEGER, DOUBLE = struct.Struct("i"), struct.Struct("d")
VALUE_BYTES = 16  # the value and when it was set


class Tally(Protocol):
    def read(self) -> Counts:
        """The values now."""
        ...


class OwnTally:
    """What this process counts, where it is the only one.

    Args:
        series: those that are read.
    """

    def __init__(self, series: Iterable[Collector]) -> None:
        self._series = tuple(series)

    def read(self) -> Counts:
        counts = Counts()
        for each in self._series:
            for metric in each.collect():
                _add(counts, metric)
        return counts


class SharedTally:
    """What all processes count.

    Args:
        directory: of their values.
        names: of the series that are read.
    """

    def __init__(self, directory: Path, names: Collection[str]) -> None:
        self._directory, self._names = directory, frozenset(names)
        self._files: dict[Path, CountedFile] = {}

    def read(self) -> Counts:
        counts = Counts()
        for pattern in FILES:
            for path in self._directory.glob(pattern):
                if path not in self._files:
                    self._files[path] = CountedFile(path, self._names)
                self._files[path].add_to(counts)
        return counts


class CountedFile:
    """The counters, or the histograms, of one process, in the format of prometheus_client's `MmapedDict`.

    After its head the file has entries: how long the key is, the key, spaces up to a multiple of 8 bytes, the value,
    and when it was set. The key is JSON: the series' name, the sample's, its labels, a text.

    Args:
        names: of the series that are read.
    """

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self._path, self._names = path, names
        self._mapped: mmap.mmap | None = None
        self._searched = HEAD_BYTES
        self._found: list[tuple[str, Place, int]] = []  # series, place, offset of the value

    def add_to(self, counts: Counts) -> None:
        content = self._content()
        if content is None:
            return
        for name, where, offset in self._found:
            counts.add(name, where, DOUBLE.unpack_from(content, offset)[0])

    def _content(self) -> mmap.mmap | None:
        """The file, searched as far as it is written; None before anything is."""
        used = 0 if self._mapped is None else INTEGER.unpack_from(self._mapped)[0]
        if self._mapped is None or used > len(self._mapped):
            self._mapped = _map(self._path)
            if self._mapped is None:
                return None
            used = INTEGER.unpack_from(self._mapped)[0]
        self._found += self._entries(self._mapped, used)
        return self._mapped

    def _entries(self, content: mmap.mmap, used: int) -> Iterator[tuple[str, Place, int]]:
        """The entries that were not there before and are of a series that is read."""
        while self._searched < used:
            begin = self._searched + INTEGER.size
            length = INTEGER.unpack_from(content, self._searched)[0]
            name, sample, labels, _ = json.loads(content[begin : begin + length])
            offset = begin + length + 8 - (length + INTEGER.size) % 8
            self._searched = offset + VALUE_BYTES
            if name in self._names and (where := place(name, sample, labels)) is not None:
                yield name, where, offset


def _map(path: Path) -> mmap.mmap | None:
    """None for a file that another process has just made and not yet filled."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            return None


def _add(counts: Counts, metric: Metric) -> None:
    """Add the samples of one series. Its histograms are cumulative, each in the order of its bounds."""
    below = 0.0
    for sample in metric.samples:
        where = place(metric.name, sample.name, sample.labels)
        if isinstance(where, float):
            counts.add(metric.name, where, sample.value - below)
            below = sample.value
        elif where is None:
            below = 0.0
        else:
            counts.add(metric.name, where, sample.value)
