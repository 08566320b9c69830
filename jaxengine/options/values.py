"""What the text of an option may be. Each value parses it, or raises ValueError saying what would be right."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.options.suggestion import suggestion

LARGEST = 2**31 - 1
JSON = "JSON"  # how a value that is an object of JSON is shown: an option of one may also be given a field at a time


@dataclass(frozen=True)
class Value:
    """One kind of value, and how `--help` shows it."""

    shown: str
    parse: Callable[[str], Any]
    choices: tuple[str, ...] = ()  # all that there are, if it is one of several names

    def __call__(self, text: str) -> Any:
        return self.parse(text)


def whole(low: int, high: int = LARGEST) -> Value:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return Value(f"{low}..{high if high < LARGEST else ''}", parse)


def number(low: float, high: float) -> Value:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("must be a number") from None
        if not low <= value <= high or math.isnan(value):
            raise ValueError(f"must be between {low:g} and {high:g}")
        return value

    return Value(f"{low:g}..{high:g}", parse)


def one_of(*choices: str) -> Value:
    return known_as(**{name: name for name in choices})


def any_case(name: Value) -> Value:
    """The same, in capitals too."""
    return Value(name.shown, lambda text: name(text.lower()), name.choices)


def known_as(**meanings: Any) -> Value:
    """One of several names, some of which may mean the same."""

    def parse(text: str) -> Any:
        if text not in meanings:
            raise ValueError(f"must be one of {', '.join(meanings)}{suggestion(text, meanings)}")
        return meanings[text]

    return Value("|".join(meanings), parse, tuple(meanings))


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return lowered in ("true", "1")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _path(text: str) -> Path:
    return Path(_text(text))  # that of nothing is the working directory, which nobody means by it


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return text


flag = Value("true|false", _flag)
text = Value("TEXT", _text)
path = Value("PATH", _path)
url = Value("URL", _url)
