"""What a finished request leaves for metrics, spans, log lines and headers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Served:
    """One finished request, in tokens and seconds over all its sequences. `inference` runs from first scheduled to the
    last token.

    `first_token` counts from arrival; `finishes` has each sequence's reason in OpenAI's words.
    """

    input_tokens: int
    generated_tokens: int
    max_new_tokens: int
    validation: float
    queue: float
    inference: float
    total: float
    first_token: float
    finishes: tuple[str, ...]

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
