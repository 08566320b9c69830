"""How much work the gateway takes on: two bounds, checked before anything is computed for a request.

A request holds one permit per sequence it generates, from arrival until its answer is complete. Its prompt counts as
queued until the first token comes. A request that does not fit is refused at once and told when to come again: see
`RetryBookings`. No request waits here: the queue belongs to the engine.

Several API keys share the permits by dynamic thresholds (Choudhury and Hahne 1998): a key may hold at most `ALPHA`
times as many permits as are free. One key alone gets four fifths of them, two get four ninths each, and some are always
left for a key that begins. The bounds, the thresholds and the times promised to refused requests hold over all HTTP
processes together, as exactly as `SharedCounters` says.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.errors import Bound, Kind, RequestError
from gateway.request.retry_bookings import HoldingTime, RetryBookings
from gateway.request.shared_counters import SharedCounters
from jaxengine.rpc import engine_pb2 as pb

RETRY_AFTER_SECONDS = (1, 60)
# How many turnovers of the permits may be promised in advance. Without a limit, clients that ask again and again would
# send others away for long.
MAX_TURNOVERS = 4
ALPHA = 4  # of the dynamic thresholds
THROUGHPUT_WINDOW = 10.0  # seconds over which throughput is averaged


class Overloaded(RequestError):
    """A request was refused because of one bound of `Admission`."""

    def __init__(self, bound: Bound, retry_after: int) -> None:
        super().__init__(Kind.OVERLOADED, "Model is overloaded", retry_after=retry_after)
        self.bound = bound


class Throughput:
    """Tokens that the engines compute per second of their steps, as exponential averages over that time."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}  # tokens per second, by engine
        self._last = 0.0  # of the engine that was lost last

    @property
    def tokens_per_second(self) -> float:
        return sum(self._rates.values()) or self._last

    def observe(self, engine: int, stats: pb.Stats) -> None:
        if stats.step_seconds <= 0:
            return
        rate = (stats.step_prefill_tokens + stats.step_decode_tokens) / stats.step_seconds
        before = self._rates.get(engine)
        weight = 1 - math.exp(-stats.step_seconds / THROUGHPUT_WINDOW)
        self._rates[engine] = before + weight * (rate - before) if before else rate

    def lost(self, engine: int) -> None:
        """The engine computes no more."""
        self._last = self._rates.pop(engine, self._last)


class Ticket:
    """One admitted request."""

    def __init__(self, admission: "Admission", caller: int) -> None:
        self._admission, self._caller = admission, caller
        self._queued = 0
        self.answered = False  # whether its first token has come

    def queue(self, prompt_tokens: int) -> None:
        """Count the prompt's tokens as queued. Raises Overloaded if too many wait already."""
        self._admission.queue(prompt_tokens, self._caller)
        self._queued += prompt_tokens

    def started(self) -> None:
        """The first token came: the prompt no longer counts as queued. Idempotent."""
        self.answered = True
        self.leave_queue()

    def leave_queue(self) -> None:
        self._admission.counters.queue(-self._queued)
        self._queued = 0


class Admission:
    """The permits of a server. Not thread-safe: it belongs to the event loop.

    Args:
        max_requests: sequences that may run at once.
        max_queued_tokens: prompt tokens of requests whose first token has not come; where no other prompt waits, one
            is let in, however long.
        counters: permits held and tokens queued, by caller, over all processes.
        clock: monotonic seconds.
        chance: random numbers in [0, 1), by which the advised seconds are rounded up or down.
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
        self._bookings: defaultdict[int, RetryBookings] = defaultdict(RetryBookings)  # by caller

    @property
    def active(self) -> int:
        """Permits held, over all processes."""
        return self.counters.active

    @property
    def queued_tokens(self) -> int:
        return self.counters.queued_tokens

    @contextmanager
    def request(self, copies: int = 1, caller: int = 0) -> Iterator[Ticket]:
        """Hold `copies` permits for the body of the `with`.

        Raises:
            Overloaded: fewer are free, or fewer for this caller.
            RequestError: `copies` is more than the server ever runs.
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
        """Hold `copies` permits; those kept for earlier refusals stay free. Raises Overloaded."""
        now, line = self._clock(), self._bookings[caller]
        turnover = self._holding.seconds(now, otherwise=self._draining_seconds())
        free = self.max_requests - self.active
        if not line.claim(copies, now):
            free -= line.imminent(now, turnover)
        if copies > free:
            raise Overloaded("requests", self._book(copies, caller, now, copies / max(copies, self.active), turnover))
        if not self._is_fair(copies, caller, free):
            held = max(copies, self.counters.held(caller))
            raise Overloaded("requests", self._book(copies, caller, now, copies / held, turnover))
        self.counters.hold(copies, caller)

    def _is_fair(self, copies: int, caller: int, free: int) -> bool:
        """Whether the threshold lets `caller` take `copies` more; a caller that holds none may take any number."""
        held = self.counters.held(caller)
        return self.counters.callers == 1 or not held or held + copies <= ALPHA * (free - copies)

    def queue(self, prompt_tokens: int, caller: int = 0) -> None:
        """Count tokens as queued. Raises Overloaded if that would be too many."""
        queued = self.queued_tokens
        if queued and queued + prompt_tokens > self.max_queued_tokens:
            share, turnover = min(1.0, prompt_tokens / queued), self._draining_seconds()
            raise Overloaded("tokens", self._book(1, caller, self._clock(), share, turnover))
        self.counters.queue(prompt_tokens)

    def _draining_seconds(self) -> float:
        """Seconds until every queued prompt is computed, at the speed measured so far; at least 1."""
        speed = self.throughput.tokens_per_second
        return max(1.0, self.queued_tokens / speed) if speed else 1.0

    def _book(self, permits: int, caller: int, now: float, share: float, turnover: float) -> int:
        """Book `permits` for a refused request; in how many whole seconds it should come again.

        Args:
            share: what the request lacks, as a share of all that is held.
            turnover: seconds in which all that is held comes back once.
        """
        low, high = RETRY_AFTER_SECONDS
        ahead = max(0.0, self.counters.promised_until(caller) - now)
        wait = min(ahead + share * turnover, MAX_TURNOVERS * turnover, high)
        self.counters.promise_until(caller, now + wait)
        advice = min(high, max(low, math.floor(wait + self._chance())))
        if len(self._bookings[caller]) < MAX_TURNOVERS * self.max_requests:
            self._bookings[caller].book(now + advice, permits)
        return advice
