"""Two reports beside each other: of each load and measure, how many times A is B.

Runs are paired by their number, so that what both suffered at the same time cancels; that is worth most where the two
were measured in turns. The mean of the ratios' logarithms has Student's distribution, of which 95 % are shown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.benchmark.names import NAMES
from gateway.benchmark.report import Level, Load, Report
from jaxengine.options.option import UsageError

# Of Student's distribution, the 97.5 % point by degrees of freedom from 1 on; behind the last, that of a normal one.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL = 1.96
THROUGHPUT = ("output_tokens_per_second", "decode_tokens_per_second")


@dataclass(frozen=True)
class Change:
    """ratio: B / A. low, high: its interval of 95 %; from 0 to infinity of a single pair."""

    load: Load
    measure: str
    pairs: int
    ratio: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the two differ by more than chance."""
        return not self.low <= 1 <= self.high


def compare(a: Report, b: Report) -> list[Change]:
    """Every measure that both have of a load. Raises UsageError if there is none."""
    if a.kind != b.kind:
        raise UsageError("--compare: one report is of an engine, the other of a server")
    loads = {level.load: level for level in b.levels}
    found = [change for level in a.levels if level.load in loads for change in _changes(level, loads[level.load])]
    if not found:
        raise UsageError("--compare: the reports have no load in common")
    return found


def _changes(a: Level, b: Level) -> Iterator[Change]:
    pairs = list(zip(a.runs, b.runs, strict=False))
    for name in NAMES:
        ratios = [later[name] / earlier[name] for earlier, later in pairs if earlier.get(name) and later.get(name)]
        if ratios:
            ratio, low, high = interval(ratios)
            yield Change(a.load, name, len(ratios), ratio, low, high)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive `ratios`, and the bounds within which it lies with 95 %."""
    logs = [math.log(each) for each in ratios]
    count, mean = len(logs), math.fsum(logs) / len(logs)
    if count < 2:
        return math.exp(mean), 0.0, math.inf
    variance = math.fsum((each - mean) ** 2 for each in logs) / (count - 1)
    reach = (STUDENT[count - 2] if count - 2 < len(STUDENT) else NORMAL) * math.sqrt(variance / count)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def slower(changes: Sequence[Change], least: float) -> list[Change]:
    """Those of throughput that are surely less than `least`: with all of their interval."""
    return [change for change in changes if change.measure in THROUGHPUT and change.high < least]


def undecided(changes: Sequence[Change], least: float) -> list[Change]:
    """Those of throughput that may be less than `least`, or may not."""
    return [change for change in changes if change.measure in THROUGHPUT and change.low < least <= change.high]
