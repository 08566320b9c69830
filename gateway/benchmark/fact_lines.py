"""The facts of a report as lines, for people: nested ones by the path of their names. A server wrote some of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.benchmark.one_line import one_line


def fact_lines(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from fact_lines(value, f"{before}{name} ")
        elif value is not None:
            yield one_line(f"{before}{name}"), f"{value:g}" if isinstance(value, float) else one_line(str(value))
