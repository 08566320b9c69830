"""The masks of a step's rows, computed without the GIL, and who must pay for those that took long."""

import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from jaxengine.grammar.grammar import GrammarError
from jaxengine.grammar.mask import words
from jaxengine.grammar.matcher import Matcher

# Rows that one thread fills as soon as several do: 8 take it 0.09 ms, two threads 0.08 to 0.26 ms, three or more that
# Python starts 0.13 ms at least (2 cores, 49,152 and 262,144 ids).
FEW = 8
# What each of several masks took is known only if one thread computes them. It does so for a while after they took long
# together: a grammar that is slow less often than that stays within its `Allowance`.
LONG, LONG_ROW = 0.002, 0.00002  # seconds, and for each row: 256 ordinary rows take 8.5 ms on one core
WATCHED = 64  # steps


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
        self._watched = 0  # steps to come

    def fill(self, matchers: Sequence[Matcher]) -> tuple[np.ndarray, dict[int, GrammarError]]:
        """The mask of each matcher, i32 [len(matchers), W] with W = ⌈vocab_size / 32⌉ and a 1 for each id that may be
        next; and by index the matchers that cannot go on, whose masks allow everything.
        """
        masks = np.zeros((len(matchers), self._filled_width), np.int32)
        asked = [(document, row) for row, each in enumerate(matchers) if (document := each.asked) is not None]
        if len(asked) > FEW and not self._watched:
            began = time.perf_counter()
            fill_next_token_bitmask_par(self._executor, asked, masks)
            if time.perf_counter() - began > LONG + LONG_ROW * len(asked):
                self._watched = WATCHED
        else:
            self._watched = max(0, self._watched - 1)
            for document, row in asked:
                with matchers[row].allowance:
                    fill_next_token_bitmask(document, masks, row)
        masks, broken = self._of_vocabulary(masks), {}
        for row, matcher in enumerate(matchers):
            try:
                matcher.complete(masks[row])
            except GrammarError as error:
                masks[row] = -1
                broken[row] = error
        return masks, broken

    def fill_behind(self, matcher: Matcher, guesses: Sequence[int]) -> np.ndarray:
        """What may come behind each of `guesses`, i32 [len(guesses), W]; nothing where the grammar cannot go on."""
        masks = np.zeros((len(guesses), self._filled_width), np.int32)
        for row, document in enumerate(matcher.behind(list(guesses))):
            fill_next_token_bitmask(document, masks, row)
        return self._of_vocabulary(masks)

    def _of_vocabulary(self, masks: np.ndarray) -> np.ndarray:
        """`masks` without ids that have no logit, i32 [rows, W]."""
        masks = masks[:, : self._width]
        masks.view(np.uint32)[:, -1] &= self._last_word
        return masks
