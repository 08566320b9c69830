"""Drafts that a grammar leaves no choice about: the keys and the punctuation of a JSON schema, say."""

from jaxengine.grammar.matcher import Matcher
from jaxengine.speculation.acceptance import FORCED, Rates
from jaxengine.speculation.drafter import Drafter, Proposal, worthwhile


class ForcedDrafter:
    """A `Drafter` of what must follow, in the tokens that the tokenizer makes of it; where nothing must, of `other`.

    The model may write the same text in other tokens, so these guesses are not certain, and their rate is learnt.

    Args:
        tokens: of the request, to which the caller appends.
        matcher: of its grammar, which has read the same tokens.
        others: the rates of all requests.
    """

    def __init__(self, tokens: list[int], matcher: Matcher, others: Rates, other: Drafter) -> None:
        self.tokens, self.matcher, self.other = tokens, matcher, other
        self.rates = Rates(FORCED, others)
        self.expected: list[int] = []
        self.seen = len(tokens)
        self.asks_at = 0  # how many tokens there must be before the grammar is asked again

    def offer(self, proposal: Proposal) -> None:
        self.other.offer(proposal)

    def read(self) -> None:
        """A long text that must follow is asked for once. What is left of it where other tokens came is no longer
        expected, but counts: so a grammar takes time in proportion to the tokens that are read.
        """
        self.other.read()
        for token in self.tokens[self.seen :]:
            if self.expected:
                hit = self.expected[0] == token
                self.rates.learn(0, hit)
                self.expected = self.expected[1:] if hit else []
        self.seen = len(self.tokens)
        if not self.expected and self.seen >= self.asks_at:
            self.expected = self.matcher.forced()
            self.asks_at = self.seen + len(self.expected)

    def chances(self, count: int) -> list[float]:
        if not self.expected:
            return self.other.chances(count)
        return worthwhile(self.rates.rate(0) for _ in self.expected[:count])

    def draft(self, count: int) -> list[int]:
        return self.expected[:count] or self.other.draft(count)
