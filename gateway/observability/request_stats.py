"""What a finished request leaves for metrics, spans, log lines, headers and answers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One finished sequence, in tokens; `finish` in OpenAI's words."""

    input_tokens: int
    cached_tokens: int  # of the input, found in the prefix cache
    generated_tokens: int
    max_new_tokens: int
    preemptions: int
    finish: str


@dataclass(frozen=True, kw_only=True)
class RequestStats:
    """One finished request: its sequences, and seconds over all of them. `inference` runs from first scheduled to the
    last token; `first_token` counts from arrival.
    """

    sequences: tuple[Sequence, ...]
    validation: float
    queue: float
    inference: float
    total: float
    first_token: float

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
    def per_token(self) -> float:
        return self.inference / max(1, self.generated_tokens)

    @property
    def prefill(self) -> float:
        """First scheduled to first token."""
        return max(0.0, self.first_token - self.validation - self.queue)

    @property
    def decode(self) -> float:
        """First token to last."""
        return max(0.0, self.inference - self.prefill)
