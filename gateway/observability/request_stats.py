"""What is known of a finished request: for metrics, spans, log lines, headers and answers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One finished sequence."""

    input_tokens: int
    cached_tokens: int  # of the input, found in the prefix cache
    generated_tokens: int
    max_new_tokens: int
    preemptions: int
    accepted_draft_tokens: int  # of the generated ones
    finish: str  # OpenAI's "stop" or "length"


@dataclass(frozen=True, kw_only=True)
class RequestStats:
    """One finished request: its sequences, and seconds over all of them."""

    sequences: tuple[Sequence, ...]
    validation: float  # arrival to handed to the engine
    queue: float  # handed to the engine to first scheduled
    inference: float  # first scheduled to last token
    total: float  # arrival to last token
    first_token: float  # arrival to first token
    at_once: bool = False  # all tokens came with the last: it was a beam search

    @property
    def input_tokens(self) -> int:
        return sum(each.input_tokens for each in self.sequences)

    @property
    def generated_tokens(self) -> int:
        return sum(each.generated_tokens for each in self.sequences)

    @property
    def max_new_tokens(self) -> int:
        return sum(each.max_new_tokens for each in self.sequences)

    @property
    def accepted_draft_tokens(self) -> int:
        return sum(each.accepted_draft_tokens for each in self.sequences)

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per step and sequence: each step gives a sequence one token, and the drafts it accepts."""
        return self.generated_tokens / max(1, self.generated_tokens - self.accepted_draft_tokens)

    @property
    def per_token(self) -> float:
        """Inference seconds per generated token."""
        return self.inference / max(1, self.generated_tokens)

    @property
    def per_gap(self) -> float | None:
        """Seconds between two tokens, on average; None where none came after others."""
        gaps = 0 if self.at_once else self.generated_tokens - 1
        return self.decode / gaps if gaps > 0 else None

    @property
    def prefill(self) -> float:
        """Seconds from first scheduled to first token."""
        return max(0.0, self.first_token - self.validation - self.queue)

    @property
    def decode(self) -> float:
        """Seconds from first token to last token."""
        return max(0.0, self.inference - self.prefill)
