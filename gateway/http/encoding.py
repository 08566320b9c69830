"""JSON as it goes on the wire: numbers and strings, which are encoded once for each generated token, and long answers,
which are encoded in threads.
"""

import asyncio
import json
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

_FLOAT = struct.Struct("f")
# Made once: at every call `json.dumps` makes another, and a short text takes 0.8 us in place of 0.1.
_VALUES = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LINE_ENDS = {each: f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8 JSON of plain values; floats must be finite."""
    return _one_line(_VALUES.encode(value)).encode()


def json_text(text: str) -> str:
    """A JSON string literal."""
    return _one_line(_VALUES.encode(text))


def json_list(written: Iterable[str]) -> str:
    """A JSON array of values that are encoded already. Meant for threads: other threads run between the values of a
    generator, where one call of the JSON encoder for 300,000 objects holds the interpreter for 0.4 s.
    """
    return f"[{','.join(written)}]"


def _one_line(written: str) -> str:
    """`written` with every character escaped that `str.splitlines`, and so httpx, takes for the end of a line: clients
    read events by lines.
    """
    if not written.isascii():
        for end, escaped in _LINE_ENDS.items():
            written = written.replace(end, escaped)
    return written


def short_float(value: float) -> float:
    """The double with the fewest digits that is the same float32: -0.41 instead of -0.4099999964237213."""
    rounded = float(f"{value:.7g}")
    if _FLOAT.pack(rounded) == _FLOAT.pack(value):
        return rounded
    return float(f"{value:.9g}")


def finite_or_none(value: float) -> float | None:
    """A logprob for JSON, which knows neither NaN nor infinity."""
    return short_float(value) if math.isfinite(value) else None


async def in_thread(work: Callable[[], Result], *, when: bool) -> Result:
    """`work()`, in a thread `when` it takes long: to encode 20 logprobs for each of 2,000 tokens takes 0.4 s."""
    return await asyncio.to_thread(work) if when else work()
