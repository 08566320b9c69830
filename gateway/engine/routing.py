"""Which replica a request goes to: the one that has the least to do before the request's first token.

What a replica has to do is counted in tokens: those of the prompt that its prefix cache lacks, those of other prompts
that it has yet to compute, and a few for each request that runs, which slows every step down. So a cached prefix draws
a request to its replica, and a queue there drives it away. Where replicas tie, prompts that begin alike meet: their
first pages are hashed over the replicas (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit
rates"), by every HTTP process alike.

Replicas report which pages they hold, so little is guessed from one's own traffic: only that the prompts which were
just sent somewhere will be there. Without this guess the 99th percentile of the time to the first token is up to 1.8
times as long in the simulation of `tests/gateway/engine/routing_simulation.py`.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

# A request that runs counts as so many tokens to compute.
RUNNING_TOKENS = 4
CROWDED = 0.9  # share of a pool's pages in use, above which what runs counts double: it may be preempted
MEETING_PAGES = 4  # first pages of a prompt by which its replica is chosen among equals
PROMISED_PAGES = 32  # of a prompt, behind those that are cached, that its replica counts as holding at once: 25 µs

Reason = Literal["prefix", "load", "hash", "moved"]


class Candidate(Protocol):
    """A replica that takes requests."""

    @property
    def number(self) -> int: ...
    def holds(self, page: int) -> bool:
        """Whether its prefix cache has the page of this short key, or will have it soon."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that it has yet to compute."""
        ...

    @property
    def requests(self) -> int:
        """How many run or wait there."""
        ...

    @property
    def kv_usage(self) -> float:
        """Share of its pages that requests hold, 0 to 1."""
        ...


class Choice(NamedTuple):
    """Where a request goes. `cached_tokens` of its prompt are there, as far as is known; `promised` are the short keys
    of pages that will be there.
    """

    number: int
    reason: Reason
    cached_tokens: int = 0
    promised: Sequence[int] = ()


class Keys:
    """The short keys of a prompt's pages, computed as far as they are asked for.

    Args:
        length: tokens of the prompt.
        pages: the keys, one after another.
    """

    def __init__(self, length: int, page_size: int, pages: Iterable[int]) -> None:
        self.length, self.page_size = length, page_size
        self._rest = iter(pages)
        self._known: list[int] = []

    @property
    def usable(self) -> int:
        """Pages that the prompt may start from: at least one token is left to compute."""
        return (self.length - 1) // self.page_size

    def between(self, begin: int, end: int) -> Sequence[int]:
        """The keys from number `begin` up to `end`, or those of them that there are."""
        missing = end - len(self._known)
        if missing > 0:
            self._known += itertools.islice(self._rest, missing)
        return self._known[begin:end]

    def at(self, index: int) -> int:
        [key] = self.between(index, index + 1)
        return key


def choose(candidates: Sequence[Candidate], keys: Keys) -> Choice:
    """The best of `candidates`, of which there is at least one."""
    cached = _cached_pages(candidates, keys)
    costs = [_cost(each, keys, pages) for each, pages in zip(candidates, cached, strict=True)]
    least = min(costs)
    best = [place for place, cost in enumerate(costs) if cost == least]
    if len(best) > 1:
        rank = _meeting(keys)
        best.sort(key=lambda place: rank(candidates[place].number))
    chosen = best[0]
    if cached[chosen] and cached[chosen] > min(cached):
        reason: Reason = "prefix"
    else:
        reason = "hash" if len(best) > 1 else "load"
    promised = keys.between(cached[chosen], cached[chosen] + PROMISED_PAGES)
    return Choice(candidates[chosen].number, reason, cached[chosen] * keys.page_size, promised)


def _cached_pages(candidates: Sequence[Candidate], keys: Keys) -> list[int]:
    """How many first pages of the prompt each candidate holds. It ends with the first page that none of them holds: a
    prompt that nobody knows costs one hash.
    """
    cached = [0] * len(candidates)
    holders = list(range(len(candidates)))
    for index in range(keys.usable):
        key = keys.at(index)
        holders = [place for place in holders if candidates[place].holds(key)]
        if not holders:
            break
        for place in holders:
            cached[place] += 1
    return cached


def _cost(candidate: Candidate, keys: Keys, cached_pages: int) -> float:
    """Tokens to compute before the first token of the prompt."""
    weight = 2 * RUNNING_TOKENS if candidate.kv_usage > CROWDED else RUNNING_TOKENS
    missing = keys.length - cached_pages * keys.page_size
    return missing + candidate.queued_tokens + weight * candidate.requests


def _meeting(keys: Keys) -> Callable[[int], bytes]:
    """Ranks replicas, in an order of its own for each beginning of prompts."""
    first = keys.between(0, MEETING_PAGES)
    name = first[-1] if first else 0
    return lambda number: hashlib.sha256(f"{name} {number}".encode()).digest()
