"""Drafts from where the text's last tokens stood before, be it in the text itself or in recent answers to others."""

from itertools import takewhile

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.answer_drafter import AnswerDrafter
from jaxengine.speculation.drafter import Proposal
from jaxengine.speculation.text_drafter import TextDrafter


class SuffixDrafter:
    """A `Drafter` that goes by the one of its drafters that expects more of its guesses to be right.

    Args:
        tokens: of the text that all of them read, to which the caller appends.
    """

    def __init__(self, tokens: list[int], options: Speculation, *drafters: TextDrafter | AnswerDrafter) -> None:
        self.tokens, self.drafters = tokens, drafters
        self.most = options.num_speculative_tokens or 0
        self.factor = options.suffix_decoding_max_spec_factor
        self.least = options.suffix_decoding_min_token_prob
        self._choose()

    def offer(self, proposal: Proposal) -> None:
        """Texts are all that it drafts from."""

    def read(self) -> None:
        if self.seen == len(self.tokens):
            return
        for each in self.drafters:
            each.read()
        self._choose()

    def chances(self, count: int) -> list[float]:
        chances = self.best.chances(min(count, int(self.factor * self.best.length)))
        return list(takewhile(lambda chance: chance >= self.least, chances))

    def draft(self, count: int) -> list[int]:
        return self.best.draft(count)

    def _choose(self) -> None:
        self.seen = len(self.tokens)
        self.best = max(self.drafters, key=lambda each: sum(each.chances(self.most)))
