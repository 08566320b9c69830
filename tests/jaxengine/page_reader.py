"""Who is told the changes of a prefix index, as a gateway is, and so must always know all of it."""

from collections.abc import Iterable
from typing import Protocol


class Change(Protocol):
    """`CachedPages`, the engine's own or the message."""

    @property
    def reset(self) -> bool: ...
    @property
    def cached(self) -> Iterable[int]: ...
    @property
    def uncached(self) -> Iterable[int]: ...


class PageReader:
    def __init__(self) -> None:
        self.keys: set[int] = set()

    def read(self, change: Change | None) -> None:
        if change is None:
            return
        if change.reset:
            self.keys = set()
        self.keys -= {*change.uncached}
        self.keys |= {*change.cached}
