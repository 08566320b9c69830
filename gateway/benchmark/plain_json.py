"""JSON of others of which every number is finite and nothing lies too deep, so that a report can be made of it."""

import json
import math
from typing import Any

DEEPEST = 32


def loads(text: str) -> Any:
    """Raises ValueError: it is no JSON, or not such."""
    try:
        found = DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not _within(found, DEEPEST):
        raise ValueError("it is nested too deeply")
    return found


def _within(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_within(each, levels - 1) for each in parts)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
