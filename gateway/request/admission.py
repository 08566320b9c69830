"""How much work the gateway takes on: two bounds, checked before anything is computed for a request.

A request holds one permit per sequence it generates, from arrival until its answer is complete; its prompt counts as
queued until the first token comes. What does not fit is refused at once, with the moment at which it will: see
`WaitingLine`. Nothing waits here: the queue itself belongs to the engine.

Between several API keys it is fair by dynamic thresholds (Choudhury and Hahne 1998): a key may hold at most `SHARE`
times as many permits as are free. One alone gets four fifths of them, two get four ninths each, and there is always
room for one more to begin. Both bounds, the shares and the order in which refused requests may return hold over all
HTTP processes together, as exactly as `SharedCounters` says.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.errors import Bound, Kind, RequestError
from gateway.request.shared_counters import SharedCounters
from gateway.request.waiting_line import HoldingTime, WaitingLine
from jaxengine.rpc import engine_pb2 as pb

RETRY_AFTER_SECONDS = (1, 60)
# How many times over the permits may be promised in advance: clients that ask again and again must not send others away
# for long.
TURNS = 4
SHARE = 4
THROUGHPUT_WINDOW = 10.0  # seconds over which throughput is averaged


class Overloaded(RequestError):
    """The server has as much work as it may hold, by one of its bounds."""

    def __init__(self, bound: Bound, retry_after: int) -> None:
        super().__init__(Kind.OVERLOADED, "Model is overloaded", retry_after=retry_after)
        self.bound = bound


class Throughput:
    """Tokens per second the engine computes while it has work, as an exponential average over busy time."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0

    def observe(self, stats: pb.Stats) -> None:
        if stats.step_seconds <= 0:
            return
        rate = (stats.step_prefill_tokens + stats.step_decode_tokens) / stats.step_seconds
        weight = 1.0 if not self.tokens_per_second else 1 - math.exp(-stats.step_seconds / THROUGHPUT_WINDOW)
        self.tokens_per_second += weight * (rate - self.tokens_per_second)


class Ticket:
    """One admitted request."""

    def __init__(self, admission: "Admission", caller: int) -> None:
        self._admission, self._caller = admission, caller
        self._queued = 0
        self.answered = False  # at least in part

    def queue(self, prompt_tokens: int) -> None:
        """Count the prompt, now that its length is known. Raises Overloaded if too much already waits."""
        self._admission.queue(prompt_tokens, self._caller)
        self._queued += prompt_tokens

    def started(self) -> None:
        """The first token came: nothing of this request waits any more. Idempotent."""
        self.answered = True
        self.leave_queue()

    def leave_queue(self) -> None:
        self._admission.counters.queue(-self._queued)
        self._queued = 0


class Admission:
    """Permits of a server. Not thread-safe: it belongs to the event loop.

    Args:
        max_requests: sequences that may be in work at once.
        max_queued_tokens: prompt tokens that may wait for their first token, over all requests; one prompt alone is
            always let in, however long.
        tally: what is held and queued; fair between its callers.
        clock: monotonic seconds.
        chance: in [0, 1), by which advice is rounded, up or down.
    """

    def __init__(
        self,
        max_requests: int,
        max_queued_tokens: int,
        counters: SharedCounters | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.max_requests = max_requests
        self.max_queued_tokens = max_queued_tokens
        self.counters = counters or SharedCounters()
        self.throughput = Throughput()
        self._clock, self._chance = clock, chance
        self._holding = HoldingTime()
        self._lines: defaultdict[int, WaitingLine] = defaultdict(WaitingLine)  # by caller

    @property
    def active(self) -> int:
        """Permits held."""
        return self.counters.active

    @property
    def queued_tokens(self) -> int:
        return self.counters.queued_tokens

    @contextmanager
    def request(self, copies: int = 1, caller: int = 0) -> Iterator[Ticket]:
        """Hold `copies` permits for the body of the `with`.

        Raises:
            Overloaded: fewer are free, or free for this caller.
            RequestError: more than there can ever be.
        """
        if copies > self.max_requests:
            limit = f"the server runs at most {self.max_requests} (--max-concurrent-requests)"
            message = f"the request asks for {copies} sequences, {limit}"
            raise RequestError.invalid(message)
        self._take(copies, caller)
        began = self._clock()
        self._holding.begin(copies, began)
        ticket = Ticket(self, caller)
        try:
            yield ticket
        finally:
            ticket.leave_queue()
            self.counters.hold(-copies, caller)
            self._holding.end(copies, began, self._clock(), answered=ticket.answered)

    def _take(self, copies: int, caller: int) -> None:
        """Hold `copies` permits, leaving those that are kept for others. Raises Overloaded."""
        now, line = self._clock(), self._lines[caller]
        turn = self._holding.seconds(now, otherwise=self._draining_seconds())
        free = self.max_requests - self.active
        if not line.claim(copies, now):
            free -= line.imminent(now, turn)
        if copies > free:
            raise Overloaded("requests", self._book(copies, caller, now, copies / max(copies, self.active), turn))
        if not self._is_fair(copies, caller, free):
            held = max(copies, self.counters.held(caller))
            raise Overloaded("requests", self._book(copies, caller, now, copies / held, turn))
        self.counters.hold(copies, caller)

    def _is_fair(self, copies: int, caller: int, free: int) -> bool:
        """Whether `caller` may take so many; one that holds none may take any number."""
        held = self.counters.held(caller)
        return self.counters.callers == 1 or not held or held + copies <= SHARE * (free - copies)

    def queue(self, prompt_tokens: int, caller: int = 0) -> None:
        queued = self.queued_tokens
        if queued and queued + prompt_tokens > self.max_queued_tokens:
            share, turn = min(1.0, prompt_tokens / queued), self._draining_seconds()
            raise Overloaded("tokens", self._book(1, caller, self._clock(), share, turn))
        self.counters.queue(prompt_tokens)

    def _draining_seconds(self) -> float:
        """Until every prompt that waits is computed, as far as is known."""
        speed = self.throughput.tokens_per_second
        return max(1.0, self.queued_tokens / speed) if speed else 1.0

    def _book(self, permits: int, caller: int, now: float, share: float, turn: float) -> int:
        """Book what a request lacks: that share of something which comes back whole within `turn` seconds.

        When to come, in whole seconds from now.
        """
        low, high = RETRY_AFTER_SECONDS
        ahead = max(0.0, self.counters.promised_until(caller) - now)
        wait = min(ahead + share * turn, TURNS * turn, high)
        self.counters.promise_until(caller, now + wait)
        advice = min(high, max(low, math.floor(wait + self._chance())))
        if len(self._lines[caller]) < TURNS * self.max_requests:
            self._lines[caller].book(now + advice, permits)
        return advice
