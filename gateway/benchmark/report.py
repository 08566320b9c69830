"""What was measured, in one form for an engine and for a server: written as tables, JSON and HTML, and compared.

Names of measures end in their unit: `_ms`, or `_per_second`.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.benchmark.distribution import Distribution

INTERRUPTED = "it was interrupted"  # by Ctrl-C
FORMAT = 1  # of the JSON; raised when a field changes its meaning


@dataclass(frozen=True)
class Load:
    """kind: "batch size", "concurrency" or "rate" (requests a second)."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass
class Level:
    """One load.

    runs: each measured run's means and rates, by the measure's name.
    spread: of all runs together, by the measure's name.
    totals: counts, rates and shares of all runs together.
    failures: how many requests ended how, other than complete.
    examples: of each such end, what the first one said.
    """

    load: Load
    runs: list[dict[str, float]] = field(default_factory=list)
    spread: dict[str, Distribution] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """kind: "engine" or "server".

    parameters: what was asked for, in the order of the first table.
    facts: of the machine, the versions and the server.
    slo: as it was given; empty without one.
    knee: the highest load that was served within the SLO; None without an SLO, or if none was.
    """

    kind: str
    parameters: dict[str, str]
    facts: dict[str, Any]
    levels: list[Level] = field(default_factory=list)
    slo: str = ""
    slo_share: float = 0.0
    knee: float | None = None
    warnings: list[str] = field(default_factory=list)
    failure: str = ""  # what ended the measurement early

    @property
    def verdict(self) -> str:
        """What the knee means, in words; empty without an SLO."""
        if not self.slo:
            return ""
        what = "requests a second" if any(each.load.kind == "rate" for each in self.levels) else "users"
        served = "no load of those tried" if self.knee is None else f"{self.knee:g} {what}"
        served = served.replace("1 users", "1 user") if self.knee == 1 else served
        return f"Serves {served} within the SLO ({self.slo}, {self.slo_share:.0%} of answers)"
