"""The adapters that requests may name, as TGI's `LORA_ADAPTERS` and vLLM's `--lora-modules` write them.

An entry is `name=path` or `path` alone, where a path is a directory or an id on the hub, with `@revision` or without.
An adapter that is given no name is called by its path, without the revision. Nothing is opened here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_NAME = 256  # characters: a name is in every log line, and a label of a metric
MAX_PATH = 4096  # as the kernel's
SHOWN = 64  # characters of a wrong one that a message repeats
NO_ADAPTER = "no adapter is called"  # how the engine begins, by which the gateway knows that one is gone


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter and what requests call it.

    Raises:
        ValueError: the name or the path cannot be one.
    """

    name: str
    path: str

    def __post_init__(self) -> None:
        check_name(self.name)
        check_path(self.path)

    def __str__(self) -> str:
        return f"{self.name}={self.path}"

    @classmethod
    def parse(cls, text: str) -> "NamedAdapter":
        """The adapter of one entry. Raises ValueError, naming what is wrong."""
        name, named, path = text.partition("=")
        if named:
            return cls(name.strip(), path.strip())
        path = text.strip()
        return cls(path.partition("@")[0] or path, path)


def named_adapters(entries: Sequence[str]) -> tuple[NamedAdapter, ...]:
    """The adapters of all `entries`, each of which may hold several with commas between. Raises ValueError."""
    adapters = [NamedAdapter.parse(text) for entry in entries for text in entry.split(",") if text.strip()]
    names = [adapter.name for adapter in adapters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two adapters are called {twice!r}: give them different names, as in name=path")
    return tuple(adapters)


def check_name(name: str) -> None:
    """Raises ValueError unless an adapter may have this name."""
    _check("name", name, MAX_NAME)
    if "=" in name:
        raise ValueError(f"name {name[:SHOWN]!r} of an adapter must have no '='")


def check_path(path: str) -> None:
    """Raises ValueError unless there may be an adapter at this path."""
    _check("path", path, MAX_PATH)


def _check(what: str, text: str, most: int) -> None:
    shown = f"{what} {text[:SHOWN]!r} of an adapter"
    if not text or not text.isprintable() or text.strip() != text or "," in text:
        raise ValueError(f"{shown} must be printable text without spaces around it or commas")
    if len(text) > most:
        raise ValueError(f"{shown} must have at most {most} characters, has {len(text)}")
