"""One request on its way through engines: what it has been answered, and so how another engine goes on with it."""

import math
import time
from collections.abc import Sequence

from jaxengine.rpc import engine_pb2 as pb

MIN_TIMEOUT = 1e-3  # seconds; 0 would mean none
# When so many engines in a row have died while they had a request and gave it few tokens, it may be the cause: reading
# it gives the first of them, and steps of another kind the next. The other requests of those engines may have moved
# together with it.
SUSPICIOUS_DEATHS = 2
FEW_TOKENS = 4
MOST_DEATHS = 8  # of engines that had a request, whatever they gave it: then it is given up
COUNTS = ("preemptions", "sampling_steps", "draft_tokens", "accepted_draft_tokens")  # that each engine begins anew


class Journey:
    """
    Args:
        request: as the gateway made it. Its time begins now.
    """

    def __init__(self, request: pb.Generate) -> None:
        self._request = request
        now = time.monotonic()
        self._deadline = now + request.timeout_seconds if request.timeout_seconds else math.inf
        self._queue_deadline = now + request.queue_timeout_seconds if request.queue_timeout_seconds else math.inf
        self.generated: list[int] = []
        self.adapter_digest: bytes | None = None  # of the adapter that it began with
        self._told_prompt = False
        self.visited: set[int] = set()  # numbers of the engines that were lost with it
        self._deaths = 0  # in a row, with few tokens
        self._all_deaths = 0
        self._tokens_here = 0  # that the present engine has given it
        self._latest = pb.RequestEvent()  # that had tokens
        self._before = pb.RequestEvent()  # the latest of the engines before

    @property
    def moved(self) -> bool:
        """Whether it has been on an engine that was lost."""
        return bool(self.visited)

    @property
    def suspect(self) -> bool:
        """Whether engines may die of it."""
        return self._deaths >= SUSPICIOUS_DEATHS

    @property
    def deadly(self) -> bool:
        """Whether one engine more that dies while it has the request is one too many."""
        return self.suspect or self._all_deaths + 1 >= MOST_DEATHS

    @property
    def prompt(self) -> Sequence[int]:
        return self._request.prompt

    @property
    def images(self) -> Sequence[pb.Image]:
        """Of the prompt."""
        return self._request.images

    @property
    def ids(self) -> list[int]:
        """The text so far: its prompt, and what has been generated."""
        return [*self._request.prompt, *self.generated]

    @property
    def length(self) -> int:
        """How many ids these are."""
        return len(self._request.prompt) + len(self.generated)

    @property
    def salt(self) -> bytes:
        return self._request.cache_salt

    @property
    def adapter(self) -> str:
        return self._request.adapter

    @property
    def time_left(self) -> float | None:
        """Seconds until a deadline passes; None without one. That of the queue counts until it has been begun."""
        deadline = self._deadline if self.generated else min(self._deadline, self._queue_deadline)
        return None if deadline == math.inf else deadline - time.monotonic()

    @property
    def expiry(self) -> pb.FinishReason:
        """Which deadline it is."""
        return pb.QUEUE_TIMEOUT if not self.generated and self._queue_deadline < self._deadline else pb.DEADLINE

    def request(self) -> pb.Generate:
        """What the next engine is asked for."""
        if not self.moved:
            return self._request
        request = pb.Generate()
        request.CopyFrom(self._request)
        request.timeout_seconds = _left(self._deadline)
        request.queue_timeout_seconds = 0 if self.generated else _left(self._queue_deadline)
        if self.generated:
            request.resume.generated.extend(self.generated)
            if self._latest.HasField("surprise"):
                request.resume.surprise = self._latest.surprise
        if self._told_prompt:
            request.sampling.prompt_logprobs = False
        return request

    def note(self, event: pb.RequestEvent) -> pb.RequestEvent:
        """`event` as one of the whole journey."""
        if self.moved:
            for name in COUNTS:
                setattr(event, name, getattr(event, name) + getattr(self._before, name))
            if self._told_prompt:
                event.ClearField("prompt")
        self._told_prompt |= event.HasField("prompt")
        if event.tokens:
            self._latest = event
            self._tokens_here += len(event.tokens)
            if self._tokens_here >= FEW_TOKENS:
                self._deaths = 0
            self.generated += [token.id for token in event.tokens]
        return event

    def lost(self, engine: int, *, died: bool) -> None:
        """The engine is no longer there. `died`: it was not stopped on purpose."""
        self.visited.add(engine)
        self._deaths += died
        self._all_deaths += died
        self._tokens_here = 0
        self._before = self._latest


def _left(deadline: float) -> float:
    """Seconds until `deadline`, as requests say them: 0 without one."""
    return 0.0 if deadline == math.inf else max(MIN_TIMEOUT, deadline - time.monotonic())
