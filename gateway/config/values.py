"""What the text of an option may be. Each value parses it, or raises ValueError saying what would be right."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.child_process import absolute

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Value:
    """One kind of value, and how `--help` shows it."""

    shown: str
    parse: Callable[[str], Any]

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
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return Value("|".join(choices), parse)


def any_case(name: Value) -> Value:
    """The same, in capitals too."""
    return Value(name.shown, lambda text: name(text.lower()))


def known_as(**meanings: str) -> Value:
    """One of several names, some of which mean the same."""
    name = one_of(*meanings)
    return Value(name.shown, lambda text: meanings[name(text)])


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return lowered in ("true", "1")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _label(text: str) -> str:
    """What an HTTP header may hold."""
    if not text.isascii() or not text.isprintable() or text.strip() != text or not text:
        raise ValueError("must be printable ASCII without spaces around it")
    return text


def _path(text: str) -> Path:
    """Absolute: other processes, whose working directory is another, are told of it."""
    return Path(absolute(text))


def _existing_directory(text: str) -> Path:
    if not _path(text).is_dir():
        raise ValueError("must be an existing directory")
    return _path(text)


def _existing_file(text: str) -> Path:
    if not _path(text).is_file():
        raise ValueError("must be an existing file")
    return _path(text)


def _keys(text: str) -> str:
    """One or several API keys, a line each."""
    for line in text.splitlines() or [""]:
        if not line.isascii() or not line.isprintable() or line.strip() != line or not line:
            raise ValueError("must be printable ASCII without spaces at its ends")
    return text


def _key_file(text: str) -> str:
    """The keys in a file: its lines, but for empty ones."""
    path = _existing_file(text)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError("must be UTF-8 text that can be read") from None
    found = "\n".join(line.strip() for line in lines if line.strip())
    if not found:
        raise ValueError("must hold at least one key")
    return _keys(found)


def _origin(text: str) -> str:
    if text != "*" and not text.startswith(("http://", "https://")):
        raise ValueError("must be '*' or start with http:// or https://")
    return text.rstrip("/")


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return text


def _route(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or not text.isascii() or set(text) & set(" {}?#"):
        raise ValueError("must be a path that begins with /, without spaces, braces, ? or #")
    return text


def _prefix(text: str) -> str:
    """A route without a slash at its end; of the root alone nothing is left."""
    return _route(text).rstrip("/")


flag = Value("true|false", _flag)
text = Value("TEXT", _text)
label = Value("TEXT", _label)
path = Value("PATH", _path)
existing_directory = Value("DIRECTORY", _existing_directory)
existing_file = Value("FILE", _existing_file)
keys = Value("KEYS", _keys)
key_file = Value("FILE", _key_file)
origin = Value("ORIGIN", _origin)
route = Value("/PATH", _route)
prefix = Value("/PATH", _prefix)
url = Value("URL", _url)
