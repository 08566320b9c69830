"""What all engines of this server have to do and can hold: by this, routers in front of it weigh servers.

Such a router knows of servers, not of engines. The Gateway API's endpoint picker takes the newest sample of a series,
whichever engine it is of. So the series that it reads exist once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxengine.rpc import engine_pb2 as pb


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
    """The engines that are ready, by their numbers: what each is, and what it last reported."""

    def __init__(self) -> None:
        self._descriptions: dict[int, pb.Description] = {}
        self._stats: dict[int, pb.Stats] = {}

    def ready(self, engine: int, description: pb.Description) -> None:
        self._descriptions[engine], self._stats[engine] = description, pb.Stats()

    def reported(self, engine: int, stats: pb.Stats) -> None:
        self._stats[engine] = stats

    def lost(self, engine: int) -> None:
        self._descriptions.pop(engine, None)
        self._stats.pop(engine, None)

    @property
    def load(self) -> PodLoad:
        stats, descriptions = self._stats.values(), self._descriptions.values()
        return PodLoad(
            waiting=sum(each.waiting for each in stats),
            running=sum(each.running for each in stats),
            kv_usage=sum(map(cache_usage, stats)) / max(1, len(stats)),
            held_tokens=sum(map(self._held_tokens, self._descriptions)),
            pages=sum(each.pages_total for each in descriptions),
            tokens=sum(each.max_batch_total_tokens for each in descriptions),
            running_adapters=_union(each.running_adapters for each in stats),
            waiting_adapters=_union(each.waiting_adapters for each in stats),
        )

    def _held_tokens(self, engine: int) -> int:
        """Not pages times their size: a model with several page tables holds a token in several pages."""
        stats = self._stats[engine]
        return stats.pages_used * self._descriptions[engine].max_batch_total_tokens // max(1, stats.pages_total)


def cache_usage(stats: pb.Stats) -> float:
    """Share of an engine's KV cache pages that running requests hold, 0 to 1."""
    return stats.pages_used / max(1, stats.pages_total)


def _union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*names)))
