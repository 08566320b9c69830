"""How much work the gateway takes on: two bounds, checked before anything is computed for a request.

A request holds one permit per sequence it generates, from arrival until its answer is complete; its prompt counts as
queued until the first token comes. What does not fit is refused at once with advice when to retry. Nothing waits here:
the queue itself belongs to the engine.

Between several API keys it is fair by dynamic thresholds (Choudhury and Hahne 1998): a key may hold at most `SHARE`
times as many permits as are free. One alone gets four fifths of them, two get four ninths each, and there is always
room for one more to begin.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from jaxengine.rpc import engine_pb2 as pb

RETRY_AFTER_SECONDS = (1, 60)
SHARE = 4
THROUGHPUT_WINDOW = 10.0  # seconds over which throughput is averaged


class Overloaded(Exception):
    """The server has as much work as it may hold. `retry_after` is in whole seconds."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


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
        self._admission.queued_tokens -= self._queued
        self._queued = 0


class Admission:
    """Permits of one gateway. Not thread-safe: it belongs to the event loop.

    Args:
        max_requests: sequences that may be in work at once.
        max_queued_tokens: prompt tokens that may wait for their first token, over all requests; one prompt alone is
            always let in, however long.
    """

    def __init__(self, max_requests: int, max_queued_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_queued_tokens = max_queued_tokens
        self.active = 0
        self.queued_tokens = 0
        self.throughput = Throughput()
        self.fair = False  # between callers, of whom there may be several
        self._held: Counter[int] = Counter()  # permits by caller

    @property
    def full(self) -> bool:
        return self.active >= self.max_requests

    @contextmanager
    def request(self, copies: int = 1, caller: int = 0) -> Iterator[Ticket]:
        """Hold `copies` permits for the body of the `with`.

        Raises:
            Overloaded: fewer are free, or free for this caller.
            ValueError: more than there can ever be.
        """
        if copies > self.max_requests:
            raise ValueError(f"{copies} sequences asked for, the server runs at most {self.max_requests}")
        free = self.max_requests - self.active
        if copies > free or not self._is_fair(copies, caller, free):
            raise Overloaded("Model is overloaded", self.retry_after())
        self.active += copies
        self._held[caller] += copies
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            ticket.started()
            self.active -= copies
            self._held[caller] -= copies

    def _is_fair(self, copies: int, caller: int, free: int) -> bool:
        """Whether `caller` may take so many; one that holds none may take any number."""
        held = self._held[caller]
        return not self.fair or not held or held + copies <= SHARE * (free - copies)

    def queue(self, prompt_tokens: int) -> None:
        if self.queued_tokens and self.queued_tokens + prompt_tokens > self.max_queued_tokens:
            raise Overloaded("Model is overloaded", self.retry_after())
        self.queued_tokens += prompt_tokens

    def retry_after(self) -> int:
        """When the queue of now will be computed, give or take a fifth so that clients do not return together."""
        low, high = RETRY_AFTER_SECONDS
        if not self.throughput.tokens_per_second:
            return low
        seconds = self.queued_tokens / self.throughput.tokens_per_second
        return min(high, max(low, math.ceil(seconds * random.uniform(1, 1.2))))
