"""One request's life inside the engine: what was asked, which tokens are known, where they live.

Token ids, sampling parameters and the RNG counter (the position) stay on the host, always: a step that fails after its
cache was donated destroys the cache, and everything must be rebuilt from here.
"""

import enum
import math
import time
from collections.abc import Sequence as Ids
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from jaxengine.request.sampling_params import SamplingParams

AGING_SECONDS = 60.0  # a priority step is worth this much waiting: bounded overtaking, so nobody starves


class FinishReason(enum.IntEnum):
    """Why a request ended; numbers as in `engine.proto`."""

    NOT_FINISHED = 0
    LENGTH = 1
    EOS = 2
    STOP_TOKEN = 3
    CANCELLED = 4
    DEADLINE = 5
    INVALID = 6
    ERROR = 7
    QUEUE_TIMEOUT = 8


@dataclass(frozen=True)
class Request:
    """What the engine is asked for. `seed` in `params` must be set; `arrived` is on the monotonic clock."""

    id: int
    prompt: Ids[int]
    params: SamplingParams
    _: KW_ONLY
    salt: bytes = b""
    timeout: float | None = None  # seconds from arrival
    queue_timeout: float | None = None  # seconds from arrival to first scheduled
    caller: int = 0  # whose share of the queue it takes
    priority: int = 0  # lower runs earlier, among its caller's
    arrived: float = field(default_factory=time.monotonic)


class Token(NamedTuple):
    """A sampled (or prompt) token with its natural-log probability and the `top` alternatives, likeliest first.

    `rank` is a prompt token's own, 1 for the likeliest; 0 of others, and of the first, which nothing predicts.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(slots=True)
class Event:
    """What happened to one request in one step. The event with a finish reason is its last."""

    request_id: int
    tokens: Ids[Token] = ()
    finish: FinishReason = FinishReason.NOT_FINISHED
    error: str = ""
    first: bool = False  # carries the first token, hence also the three below
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prompt: Ids[Token] = ()
    preemptions: int = 0  # of the request so far


@dataclass(slots=True)
class Table:
    """Pages of a sequence in order; the first `passed` are given back, SINK stands for them."""

    pages: list[int]
    passed: int = 0

    @property
    def held(self) -> list[int]:
        return self.pages[self.passed :]


class Sequence:
    """A request while it is served.

    `length` counts the tokens that exist, read or still on the device, `computed` the positions whose keys and values
    are written or being written by a dispatched step. The next position to feed is `computed`; the next token to sample
    has position `length`.

    Args:
        start_token: of a model with an encoder. The prompt is then the encoder's `source`, and what the decoder is
            given is this token alone. Its table begins with the pages of the source.
    """

    def __init__(self, request: Request, arrival: int, start_token: int | None = None) -> None:
        self.request = request
        self.params: SamplingParams = request.params
        self.arrival = arrival
        deadlines = [each for each in (request.timeout, request.queue_timeout) if each is not None]
        self.earliest_deadline = request.arrived + min(deadlines, default=math.inf)  # before it none of them has passed
        prompt = list(request.prompt)
        self.encoder_input: list[int] = [] if start_token is None else prompt
        self.tokens: list[int] = prompt if start_token is None else [start_token]
        self.prompt_length = self.length = len(self.tokens)
        self.max_length = self.prompt_length + self.params.max_tokens  # what `length` may become
        self.rope_length = self.prompt_length  # of the text when its keys were computed, see `model/rope.py`
        self.tables: list[Table] = []  # equally long; none without a slot
        self.keys: list[bytes] = []  # prefix-cache key of each full page of known tokens
        self.offered_pages = 0  # pages already offered to the prefix cache
        self.slot: int | None = None
        self.computed = 0
        self.page_capacity = 0  # own tokens that its pages have place for
        self.in_flight = 0  # dispatched steps not yet completed that hold a row of this sequence
        self.finish = FinishReason.NOT_FINISHED
        self.nonfinite = False  # a row of it was not finite: its pages are of no use to others
        self.cached_tokens = 0
        self.admitted_at: float | None = None  # monotonic; first taken from the queue, or read for by another
        self.first_token_at: float | None = None  # first token read
        self.preemptions = 0
        # Filled chunk by chunk where wanted; nothing says how likely the first token was.
        self.prompt_logprobs = [Token(self.tokens[0], math.nan)] if request.params.prompt_logprobs else []

    @property
    def pending(self) -> int:
        """Sampled tokens that are still on the device."""
        return self.length - len(self.tokens)

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    @property
    def exhausted(self) -> bool:
        """Whether every token it may have is sampled: nothing is left to schedule."""
        return self.length >= self.max_length

    @property
    def order(self) -> tuple[float, int]:
        """Place in the queue: first come first served, a priority step being worth AGING_SECONDS."""
        return (self.request.arrived + self.request.priority * AGING_SECONDS, self.arrival)

    def expired(self, now: float) -> FinishReason | None:
        """Which of its deadlines has passed."""
        age = now - self.request.arrived
        if self.request.timeout is not None and age > self.request.timeout:
            return FinishReason.DEADLINE
        queued = self.request.queue_timeout if self.admitted_at is None else None
        return FinishReason.QUEUE_TIMEOUT if queued is not None and age > queued else None
