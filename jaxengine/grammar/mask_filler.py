"""The masks of a step's rows, computed side by side without the GIL."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from jaxengine.grammar.grammar import GrammarError
from jaxengine.grammar.mask import words
from jaxengine.grammar.matcher import Matcher

FEW = 2  # rows that one thread fills sooner than several are woken: a mask takes 20 to 100 µs


class MaskFiller:
    """Fills masks for logits of `vocab_size` ids.

    Args:
        tokenizer_size: ids of the tokenizer, at least `vocab_size`.
    """

    def __init__(self, vocab_size: int, tokenizer_size: int, threads: int) -> None:
        self._width = words(vocab_size)
        self._filled_width = words(tokenizer_size)
        self._last_word = np.uint32((1 << 32) - 1 >> -vocab_size % 32)  # without bits of ids that have no logit
        self._executor = LLExecutor(threads)

    def fill(self, matchers: Sequence[Matcher]) -> tuple[np.ndarray, dict[int, GrammarError]]:
        """The mask of each matcher, i32 [len(matchers), W] with W = ⌈vocab_size / 32⌉ and a 1 for each id that may be
        next; and by index the matchers that cannot go on, whose masks allow everything.
        """
        masks = np.zeros((len(matchers), self._filled_width), np.int32)
        asked = [(document, row) for row, each in enumerate(matchers) if (document := each.asked) is not None]
        if len(asked) > FEW:
            fill_next_token_bitmask_par(self._executor, asked, masks)
        else:
            for document, row in asked:
                fill_next_token_bitmask(document, masks, row)
        masks, broken = masks[:, : self._width], {}
        masks.view(np.uint32)[:, -1] &= self._last_word
        for row, matcher in enumerate(matchers):
            try:
                matcher.complete(masks[row])
            except GrammarError as error:
                masks[row] = -1
                broken[row] = error
        return masks, broken
