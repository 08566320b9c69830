"""A simulation of replicas under chats that share system prompts, to compare rules of routing: `simulate`.

Four replicas, each with a prefix cache of 3,000 pages. A request's prompt is a system prompt of 4 to 32 pages and the
turns of its session so far; a page that is not cached takes 6 ms, prompts are computed one after another, and an answer
then runs for 2 s on average. Requests come at random, 60 a second, to one of several processes that route each for
itself. What a replica has to do is known at once, a page only when it is computed: a process guesses that the prompts
which it has sent somewhere itself will be there. Everything is drawn from one seed.
"""

import heapq
import random
import statistics
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.engine.routing import Keys

REPLICAS = 4
CACHE_PAGES = 3000
PAGE = 16  # tokens
PAGE_SECONDS = 0.006
RATE = 60.0  # requests a second
REQUESTS = 5000
SESSIONS = 300
SYSTEM_PROMPTS = 40
ANSWER_SECONDS = 2.0


@dataclass
class SimulatedReplica:
    """Computes prompts one after another."""

    number: int
    now: float = 0.0
    free_at: float = 0.0  # when all prompts that it has are computed
    pages: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    coming: list["Counter[int]"] = field(default_factory=list)  # pages of prompts that wait, by who has sent them
    asked_by: int = 0  # the process that routes now
    ends: list[float] = field(default_factory=list)  # of the requests that it has
    kv_usage: float = 0.0

    @property
    def queued_tokens(self) -> int:
        return round(max(0.0, self.free_at - self.now) / PAGE_SECONDS * PAGE)

    @property
    def requests(self) -> int:
        return len(self.ends)

    def missing(self, prompt: Sequence[int]) -> int:
        """Pages that it will have to compute when it comes to `prompt`: what waits before will be there."""
        return sum(page not in self.pages and not any(page in each for each in self.coming) for page in prompt)

    def holds(self, page: int) -> bool:
        return page in self.pages or page in self.coming[self.asked_by]

    def compute(self, prompt: Sequence[int]) -> None:
        for page in reversed(prompt):  # the first ones are used last, so that parents outlive children
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > CACHE_PAGES:
            self.pages.popitem(last=False)


Rule = Callable[[Sequence[SimulatedReplica], Sequence[int]], int]  # the replica for a prompt, given by its pages


class Waiting(NamedTuple):
    """A prompt that a process has sent to a replica."""

    computed_at: float
    process: int
    prompt: list[int]


class Outcome(NamedTuple):
    """hit_rate: of prompts' pages. p99: of the seconds to the first token. imbalance: busiest replica over the mean."""

    hit_rate: float
    p99: float
    imbalance: float


def keys_of(prompt: Sequence[int]) -> Keys:
    return Keys(len(prompt) * PAGE + 1, PAGE, prompt)


def simulate(rule: Rule, seed: int, processes: int = 1) -> Outcome:
    chance = random.Random(seed)
    replicas = [SimulatedReplica(number, coming=[Counter() for _ in range(processes)]) for number in range(REPLICAS)]
    names = iter(range(1, 1 << 40))
    systems = [[next(names) for _ in range(chance.randint(4, 32))] for _ in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]  # Zipf
    sessions: list[list[int]] = []
    now, computed, cached, pages = 0.0, [0] * REPLICAS, 0, 0
    waits: list[float] = []
    queues: list[list[Waiting]] = [[] for _ in replicas]
    for _ in range(REQUESTS):
        now += chance.expovariate(RATE)
        for replica, queue in zip(replicas, queues, strict=True):
            replica.now = now
            _advance(replica, queue)
        prompt, process = _next_prompt(sessions, systems, weights, chance, names), chance.randrange(processes)
        for replica in replicas:
            replica.asked_by = process
        number = rule(replicas, prompt)
        replica, queue = replicas[number], queues[number]
        missing = replica.missing(prompt)
        replica.free_at = max(now, replica.free_at) + missing * PAGE_SECONDS
        replica.coming[process].update(prompt)
        heapq.heappush(queue, Waiting(replica.free_at, process, prompt))
        heapq.heappush(replica.ends, replica.free_at + chance.expovariate(1 / ANSWER_SECONDS))
        waits.append(replica.free_at - now)
        computed[number] += missing
        cached += len(prompt) - missing
        pages += len(prompt)
    p99 = statistics.quantiles(waits, n=100)[98]
    return Outcome(cached / pages, p99, max(computed) * REPLICAS / sum(computed))


def _advance(replica: SimulatedReplica, queue: "list[Waiting]") -> None:
    """Bring a replica to its present moment."""
    while queue and queue[0].computed_at <= replica.now:
        _, process, prompt = heapq.heappop(queue)
        replica.compute(prompt)
        replica.coming[process] -= Counter(prompt)  # and forget those that nobody else waits for
    while replica.ends and replica.ends[0] <= replica.now:
        heapq.heappop(replica.ends)


def _next_prompt(
    sessions: list[list[int]],
    systems: list[list[int]],
    weights: list[float],
    chance: random.Random,
    names: Iterator[int],
) -> list[int]:
    """The next turn of a session, or the first of a new one, which takes the place of an old one."""
    if len(sessions) < SESSIONS or chance.random() < 0.1:
        session = list(chance.choices(systems, weights)[0])
        if len(sessions) < SESSIONS:
            sessions.append(session)
        else:
            sessions[chance.randrange(SESSIONS)] = session
    else:
        session = chance.choice(sessions)
    session += [next(names) for _ in range(chance.randint(1, 6))]
    return list(session)
