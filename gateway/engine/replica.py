"""One of several engines, as the router sees it: what it holds, what it has to do, and whether it takes requests."""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gateway.engine.client import EngineClient
from gateway.engine.interface import ReplicaState, ReplicaStatus
from jaxengine.rpc import engine_pb2 as pb


class Turn(enum.IntEnum):
    """What the operator wants of a replica; the same for all HTTP processes."""

    OPEN = 0
    CLOSED = 1  # it takes no new requests, those that run go on
    CLEARED = 2  # those that run move to other replicas


class Replica:
    """
    Args:
        client: of the engine.
        turn: what the operator wants of it.
    """

    def __init__(self, client: EngineClient, turn: Callable[[], Turn]) -> None:
        self.client = client
        self.pages: set[int] = set()  # short keys of what its prefix cache holds
        self._turn = turn
        self._was_ready = False
        self._picked = self._picked_tokens = 0  # sent there since it last reported, and the tokens of their prompts
        self._promised: Counter[int] = Counter()  # short keys of pages that requests sent there will fill

    @property
    def number(self) -> int:
        return self.client.number

    @property
    def turn(self) -> Turn:
        return self._turn()

    @property
    def open(self) -> bool:
        """Whether it takes requests."""
        return self.client.ready and self.turn is Turn.OPEN

    def adapter_digest(self, name: str) -> bytes | None:
        """Of the adapter that it serves as `name`, which tells its versions apart; None if it has none."""
        adapter = self.client.adapters.served.get(name)
        return None if adapter is None else adapter.digest

    def holds(self, page: int) -> bool:
        """Whether its prefix cache has the page of this short key, or will have it soon."""
        return page in self.pages or page in self._promised

    @property
    def queued_tokens(self) -> int:
        return self.client.stats.queued_prefill_tokens + self._picked_tokens

    @property
    def requests(self) -> int:
        return self.client.stats.running + self.client.stats.waiting + self._picked

    @property
    def kv_usage(self) -> float:
        return self.client.stats.pages_used / max(1, self.client.stats.pages_total)

    @property
    def status(self) -> ReplicaStatus:
        stats, description = self.client.stats, self.client.description or pb.Description()
        devices = f"{description.device_count} x {description.device_kind}" if description.device_kind else ""
        return ReplicaStatus(self.number, self._state, devices, stats.waiting, stats.running, round(self.kv_usage, 4))

    @property
    def _state(self) -> ReplicaState:
        if not self.client.ready:
            return "lost" if self._was_ready else "starting"
        return "ready" if self.turn is Turn.OPEN else "draining"

    def picked(self, tokens: int) -> None:
        """A request was sent there, which has to compute so many tokens first. The next report will have counted it."""
        self._picked += 1
        self._picked_tokens += tokens

    @contextmanager
    def promise(self, pages: Iterable[int]) -> Iterator[None]:
        """Count the pages of these short keys as its own until the block ends."""
        self._promised.update(pages)
        try:
            yield
        finally:
            for page in pages:
                self._promised[page] -= 1
                if not self._promised[page]:
                    del self._promised[page]

    def reported(self, step: pb.StepEvents) -> None:
        """The engine says what it holds and has to do."""
        self._was_ready = True
        if step.HasField("stats"):
            self._picked = self._picked_tokens = 0
        if step.HasField("pages"):
            if step.pages.reset:
                self.pages.clear()
            self.pages.difference_update(step.pages.uncached)
            self.pages.update(step.pages.cached)

    def lost(self) -> None:
        self.pages.clear()
        self._picked = self._picked_tokens = 0
