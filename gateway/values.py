"""What the text of an option may be. Each parser returns the value or raises ValueError saying what would be right."""

import math
from collections.abc import Callable
from pathlib import Path


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("must be a number") from None
        if not low <= value <= high or math.isnan(value):
            raise ValueError(f"must be between {low:g} and {high:g}")
        return value

    return parse


def flag(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return lowered in ("true", "1")


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def header_text(value: str) -> str:
    if not value.isascii() or not value.isprintable() or value.strip() != value or not value:
        raise ValueError("must be printable ASCII without spaces at its ends")
    return value


def existing_directory(value: str) -> Path:
    if not Path(value).is_dir():
        raise ValueError("must be an existing directory")
    return Path(value)


def keys(value: str) -> str:
    """One or several API keys, a line each."""
    for line in value.splitlines() or [""]:
        header_text(line)
    return value


def key_file(value: str) -> str:
    """The keys in a file: its lines, but for empty ones."""
    lines = existing_file(value).read_text(encoding="utf-8").splitlines()
    found = "\n".join(line.strip() for line in lines if line.strip())
    if not found:
        raise ValueError("must hold at least one key")
    return keys(found)


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return parse


def origin(value: str) -> str:
    if value != "*" and not value.startswith(("http://", "https://")):
        raise ValueError("must be '*' or start with http:// or https://")
    return value.rstrip("/")


def url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


def existing_file(value: str) -> Path:
    if not Path(value).is_file():
        raise ValueError("must be an existing file")
    return Path(value)
