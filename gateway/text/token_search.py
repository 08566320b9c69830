"""Which tokens of a vocabulary have a text inside them."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate

from gateway.text.tokenizer import Tokenizer

KEPT = 64  # texts whose ids are remembered, 4 bytes for each id
BETWEEN = b"\xff"  # tokens; no byte of a text in UTF-8


class TokenSearch:
    """Searches the bytes of all tokens, special ones too. The first search spells the vocabulary.

    Of 128,000 tokens that takes 340 ms, and a further text 1 ms, or 16 if every fifth token has it [measured]: so both
    are for a thread.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids_with = lru_cache(KEPT)(self._ids_with)

    @cached_property
    def _spelled(self) -> tuple[bytes, Sequence[int]]:
        """All tokens by id, and where each begins; an id that is no token is empty."""
        tokens = [self._tokenizer.token_bytes(id) for id in range(self._tokenizer.end)]
        return BETWEEN.join(tokens), array("I", accumulate((len(each) + 1 for each in tokens), initial=0))

    def _ids_with(self, text: str) -> Sequence[int]:
        """The ids of all tokens that contain `text`, in order."""
        spelled, begins = self._spelled
        wanted, found = text.encode(), array("I")
        at = spelled.find(wanted)
        while at >= 0:
            id = bisect_right(begins, at) - 1
            found.append(id)
            at = spelled.find(wanted, begins[id + 1])
        return found
