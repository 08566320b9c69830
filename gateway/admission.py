"""How much work the gateway takes on: two bounds, checked before anything is computed for a request.

A request holds one permit per sequence it generates, from arrival until its answer is complete; its prompt counts as
queued until the first token comes. What does not fit is refused at once with advice when to retry. Nothing waits here:
the queue itself belongs to the engine.

Between several API keys it is fair by dynamic thresholds (Choudhury and Hahne 1998): a key may hold at most `SHARE`
times as many permits as are free. One alone gets four fifths of them, two get four ninths each, and there is always
room for one more to begin. Both bounds and the shares hold over all HTTP processes together, as exactly as `Tally`
says.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Kind, RequestError
from gateway.tally import Tally
from jaxengine.rpc import engine_pb2 as pb

RETRY_AFTER_SECONDS = (1, 60)
SHARE = 4
THROUGHPUT_WINDOW = 10.0  # seconds over which throughput is averaged


class Overloaded(RequestError):
    """The server has as much work as it may hold."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(Kind.OVERLOADED, "Model is overloaded", retry_after=retry_after)


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

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self._queued = 0

    def queue(self, prompt_tokens: int) -> None:
        """Count the prompt, now that its length is known. Raises Overloaded if too much already waits."""
        self._admission.queue(prompt_tokens)
        self._queued += prompt_tokens

    def started(self) -> None:
        """The first token came: nothing of this request waits any more. Idempotent."""
        self._admission.tally.queue(-self._queued)
        self._queued = 0


class Admission:
    """Permits of a server. Not thread-safe: it belongs to the event loop.

    Args:
        max_requests: sequences that may be in work at once.
        max_queued_tokens: prompt tokens that may wait for their first token, over all requests; one prompt alone is
            always let in, however long.
        tally: what is held and queued; fair between its callers.
    """

    def __init__(self, max_requests: int, max_queued_tokens: int, tally: Tally | None = None) -> None:
        self.max_requests = max_requests
        self.max_queued_tokens = max_queued_tokens
        self.tally = tally or Tally()
        self.throughput = Throughput()

    @property
    def active(self) -> int:
        """Permits held."""
        return self.tally.active

    @property
    def queued_tokens(self) -> int:
        return self.tally.queued_tokens

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
        free = self.max_requests - self.active
        if copies > free or not self._is_fair(copies, caller, free):
            raise Overloaded(self.retry_after())
        self.tally.hold(copies, caller)
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            ticket.started()
            self.tally.hold(-copies, caller)

    def _is_fair(self, copies: int, caller: int, free: int) -> bool:
        """Whether `caller` may take so many; one that holds none may take any number."""
        held = self.tally.held(caller)
        return self.tally.callers == 1 or not held or held + copies <= SHARE * (free - copies)

    def queue(self, prompt_tokens: int) -> None:
        queued = self.queued_tokens
        if queued and queued + prompt_tokens > self.max_queued_tokens:
            raise Overloaded(self.retry_after())
        self.tally.queue(prompt_tokens)

    def retry_after(self) -> int:
        """When the queue of now will be computed, give or take a fifth so that clients do not return together."""
        low, high = RETRY_AFTER_SECONDS
        if not self.throughput.tokens_per_second:
            return low
        seconds = self.queued_tokens / self.throughput.tokens_per_second
        return min(high, max(low, math.ceil(seconds * random.uniform(1, 1.2))))
