"""A comparison as a table."""

import json
from collections.abc import Sequence

from gateway.benchmark.comparison import Change
from gateway.benchmark.names import NAMES

COLUMNS = ("Load", "Measure", "Pairs", "B / A", "95 %", "")


def rows(changes: Sequence[Change]) -> list[list[str]]:
    return [
        [
            f"{change.load.kind} {change.load}",
            NAMES[change.measure],
            str(change.pairs),
            f"{change.ratio:.3f}",
            f"{change.low:.3f} … {change.high:.3f}" if change.pairs > 1 else "one pair has no interval",
            _verdict(change),
        ]
        for change in changes
    ]


def _verdict(change: Change) -> str:
    if not change.sure:
        return "no sure difference"
    faster = (change.ratio > 1) == change.measure.endswith("_per_second")
    return "B is better" if faster else "B is worse"


def written(names: Sequence[str], changes: Sequence[Change]) -> str:
    """As JSON, which has no infinity: a bound that is not known is null."""
    listed = [
        {
            "load": {"kind": change.load.kind, "value": change.load.value},
            "measure": change.measure,
            "pairs": change.pairs,
            "ratio": change.ratio,
            "low": change.low if change.pairs > 1 else None,
            "high": change.high if change.pairs > 1 else None,
        }
        for change in changes
    ]
    return json.dumps({"a": names[0], "b": names[1], "changes": listed}, indent=1, allow_nan=False) + "\n"
