"""Two reports beside each other: of each load and measure, B as a multiple of A.

Runs are paired by their number, so that what both suffered at the same time cancels; that is worth most where the two
were measured in turns. The mean of the ratios' logarithms has Student's distribution, of which 95 % are shown. A rate
of 0 in B where A has one is no noise: the ratio is then 0, surely.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.benchmark.names import NAMES
from gateway.benchmark.report import Level, Load, Report
from jaxengine.options.option import UsageError

# Of Student's distribution, the 97.5 % point by degrees of freedom from 1 on; behind the last, by an expansion.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL = 1.959964
OF_NO_EFFECT = ("Url", "Seed")  # parameters that two comparable reports may differ in
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
    common = [level for level in a.levels if level.load in loads]
    if not common:
        raise UsageError("--compare: the reports have no load in common")
    return [change for level in common for change in _changes(level, loads[level.load])]


def _changes(a: Level, b: Level) -> Iterator[Change]:
    pairs = list(zip(a.runs, b.runs, strict=False))
    for name in NAMES:
        both = [(earlier[name], later[name]) for earlier, later in pairs if earlier.get(name) and name in later]
        ratios = [later / earlier for earlier, later in both if later or name.endswith("_per_second")]
        if ratios:
            ratio, low, high = interval(ratios)
            yield Change(a.load, name, len(ratios), ratio, low, high)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of `ratios`, and the bounds within which it lies with 95 %: with a ratio of 0 all are 0."""
    if 0 in ratios:
        return 0.0, 0.0, 0.0
    logs = [math.log(each) for each in ratios]
    count, mean = len(logs), math.fsum(logs) / len(logs)
    if count < 2:
        return math.exp(mean), 0.0, math.inf
    variance = math.fsum((each - mean) ** 2 for each in logs) / (count - 1)
    reach = student(count - 1) * math.sqrt(variance / count)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's distribution, by its degrees of freedom."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def failures(a: Report, b: Report) -> list[str]:
    """What went wrong that no ratio tells: a measurement that ended early, a load or a kind of failure of one alone."""
    found = [f"{name} ended early: {each.failure}" for name, each in (("A", a), ("B", b)) if each.failure]
    of_a, of_b = ({level.load: level for level in each.levels} for each in (a, b))
    found += [f"only A has {load.kind} {load}" for load in of_a if load not in of_b]
    found += [f"only B has {load.kind} {load}" for load in of_b if load not in of_a]
    for load, level in of_b.items():
        if load in of_a and (new := level.failures.keys() - of_a[load].failures.keys()):
            found.append(f"only B has requests that ended {', '.join(sorted(new))} at {load.kind} {load}")
        if level.totals.get("complete") == 0:
            found.append(f"B has no complete answer at {load.kind} {load}")
    return found


def differences(a: Report, b: Report) -> list[str]:
    """Parameters of which the two have not the same."""
    names = [name for name in {**a.parameters, **b.parameters} if name not in OF_NO_EFFECT]
    pairs = [(name, a.parameters.get(name, "-"), b.parameters.get(name, "-")) for name in names]
    pairs.append(("SLO share", f"{a.slo_share:g}", f"{b.slo_share:g}"))
    return [f"{name} is {of_a} in A and {of_b} in B" for name, of_a, of_b in pairs if of_a != of_b]


def slower(changes: Sequence[Change], least: float) -> list[Change]:
    """Those of throughput that are surely less than `least`: with all of their interval."""
    return [change for change in changes if change.measure in THROUGHPUT and change.high < least]


def undecided(changes: Sequence[Change], least: float) -> list[Change]:
    """Those of throughput that may be less than `least`, or may not."""
    return [change for change in changes if change.measure in THROUGHPUT and change.low < least <= change.high]
