"""What becomes of a request, step by step: tokens, and why it ended."""

import enum
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import NamedTuple


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


NOT_FINISHED = FinishReason.NOT_FINISHED  # for what is done for each row: Python 3.11 takes 0.1 us to find a member


class Token(NamedTuple):
    """A sampled token, or one of the prompt.

    logprob: natural logarithm of its probability; NaN for the first token of a prompt, which nothing predicts.
    top: (id, logprob) of the likeliest alternatives, likeliest first.
    rank: of a prompt token among all ids, 1 for the likeliest; 0 for sampled tokens and for the first of a prompt.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


class Beam(NamedTuple):
    """An answer of a beam search. `score` is the sum of its logprobs over a power of its length, see `BeamSearch`."""

    tokens: Ids[Token]
    finish: FinishReason
    score: float


@dataclass(slots=True)
class Event:
    """What happened to one request in one step. The event with a finish reason is its last."""

    request_id: int
    tokens: Ids[Token] = ()
    finish: FinishReason = FinishReason.NOT_FINISHED
    error: str = ""
    first: bool = False  # it carries the first token, hence also the three fields below
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prompt: Ids[Token] = ()
    preemptions: int = 0  # of the request so far, like the three below
    sampling_steps: int = 0  # steps that gave it tokens; 0 where the engine does not speculate
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    beams: Ids[Beam] = ()  # in place of tokens, the best first
    embedding: bytes = b""  # f32 [hidden], of a request with `pooling`; its last event has it
    logits: bytes = b""  # f32 [positions, vocabulary], likewise of one with `logits`
    surprise: float | None = None  # mirostat's bound behind its last token, in bits; None where mirostat is off
