"""What all engines of this server have to do and can hold: by this, routers in front of it weigh servers.

Such a router knows of servers, not of engines. The Gateway API's endpoint picker takes the newest sample of a series,
whichever engine it is of. So the series that it reads exist once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxengine.rpc import engine_pb2 as pb

NOT_DESCRIBED = pb.Description()


@dataclass(frozen=True)
class PodLoad:
    """Of the engines that are ready, together.

    waiting, running: requests.
    kv_usage: share of an engine's KV cache pages that running requests hold, 0 to 1, the average of the engines.
    held_tokens: of the KV caches, held by running requests.
    pages, tokens: that the KV caches have room for.
    running_adapters, waiting_adapters: names, sorted, that such requests ask for.
    """

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    held_tokens: int = 0
    pages: int = 0
    tokens: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()


class Pod:
    """The engines that are ready, by their numbers: what each is, and what it does."""

    def __init__(self) -> None:
        self._descriptions: dict[int, pb.Description] = {}
        self._loads: dict[int, PodLoad] = {}  # of each engine by itself

    def ready(self, engine: int, description: pb.Description) -> None:
        self._descriptions[engine] = description
        self.reported(engine, pb.Stats())

    def reported(self, engine: int, stats: pb.Stats) -> None:
        self._loads[engine] = _load(self._descriptions.get(engine, NOT_DESCRIBED), stats)

    def lost(self, engine: int) -> None:
        self._descriptions.pop(engine, None)
        self._loads.pop(engine, None)

    @property
    def load(self) -> PodLoad:
        loads = self._loads.values()
        return PodLoad(
            waiting=sum([each.waiting for each in loads]),
            running=sum([each.running for each in loads]),
            kv_usage=sum([each.kv_usage for each in loads]) / max(1, len(loads)),
            held_tokens=sum([each.held_tokens for each in loads]),
            pages=sum([each.pages for each in loads]),
            tokens=sum([each.tokens for each in loads]),
            running_adapters=_union([each.running_adapters for each in loads]),
            waiting_adapters=_union([each.waiting_adapters for each in loads]),
        )


def _load(description: pb.Description, stats: pb.Stats) -> PodLoad:
    tokens = description.max_batch_total_tokens
    return PodLoad(
        waiting=stats.waiting,
        running=stats.running,
        kv_usage=cache_usage(stats),
        # Not pages times their size: a model with several page tables holds a token in several pages.
        held_tokens=stats.pages_used * tokens // max(1, stats.pages_total),
        pages=description.pages_total,
        tokens=tokens,
        running_adapters=tuple(stats.running_adapters),
        waiting_adapters=tuple(stats.waiting_adapters),
    )


def cache_usage(stats: pb.Stats) -> float:
    """Share of an engine's KV cache pages that running requests hold, 0 to 1."""
    return stats.pages_used / max(1, stats.pages_total)


def _union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*names)))
