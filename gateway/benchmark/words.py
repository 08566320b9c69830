"""Texts of a chosen number of tokens out of common words, no two alike in practice.

Without the server's tokenizer a text has so many words, and how many tokens that is the server tells. With it the
tokens are exact: words are taken away or put behind until the count is right.
"""

import random
from typing import Protocol

TEXT = (
    "the of and to in is that for it was on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
COMMON = TEXT.split()
TRIES = 64


class Counts(Protocol):
    """A tokenizer, as far as it matters here: `gateway.text.tokenizer.Tokenizer`."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...


class Words:
    """Args:
    chance: where the words come from.
    tokenizer: of the server's model.
    """

    def __init__(self, chance: random.Random, tokenizer: Counts | None = None) -> None:
        self._chance, self._tokenizer = chance, tokenizer

    def text(self, tokens: int, before: str = "") -> str:
        """A text that has so many tokens, with those that a server puts around it, or makes `before` so much longer."""
        if self._tokenizer is None:
            return " ".join(self._chance.choices(COMMON, k=tokens))
        goal = tokens + (self._count(before) if before else 0)
        ids = self._tokenizer.encode(self._words(2 * tokens), add_special_tokens=False)
        keep, best, miss = min(tokens, len(ids)), "", goal
        for _ in range(TRIES):
            text = self._tokenizer.decode(ids[:keep], skip_special_tokens=True)
            if text[:1] and before and text[0] != " ":
                text = " " + text
            excess = self._count(before + text) - goal
            if abs(excess) < miss:
                best, miss = text, abs(excess)
            if excess == 0 or not 1 <= keep - excess <= len(ids):
                break
            keep -= excess
        return best

    def _words(self, count: int) -> str:
        return " ".join(self._chance.choices(COMMON, k=count))

    def _count(self, text: str) -> int:
        assert self._tokenizer is not None
        return len(self._tokenizer.encode(text, add_special_tokens=True))
