"""How a context is shared between a prompt and its answer, as KoboldCpp shares it."""

from dataclasses import dataclass

MIN_CONTEXT = 8


@dataclass(frozen=True)
class Lengths:
    """Tokens of an answer at most, and how many are left for its prompt."""

    answer: int
    prompt: int

    @classmethod
    def of(cls, context: int | None, answer: int, served: int) -> "Lengths":
        """What becomes of a request for a `context` with an `answer`, where a context of `served` tokens is served:
        the context is no longer than that, and the answer leaves a fifth of it to the prompt, or else 16 tokens.
        """
        context = served if context is None else min(context, served)
        kept = max(min(context - 4, 16), context // 5)
        answer = min(answer, context - kept)
        return cls(answer, context - answer)
