"""What one request's text offers as a draft, and how likely that is right."""

from itertools import accumulate
from operator import mul

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.prompt_lookup import PromptLookup


class Drafter:
    """
    Args:
        tokens: of the text, to which the caller appends.
        others: the rates of all requests.
    """

    def __init__(self, tokens: list[int], options: Speculation, others: Rates) -> None:
        self.lookup = PromptLookup(tokens, options)
        self.rates = Rates(others)

    def read(self) -> None:
        """Read the tokens that were appended, and learn whether they were what a draft would have been.

        So the rates are right too while no step verifies anything.
        """
        lookup = self.lookup
        while lookup.read < len(lookup.tokens):
            drafted, length = lookup.next > 0, lookup.length
            hit = lookup.follow()
            if drafted:
                self.rates.learn(length, hit)

    def chances(self, count: int) -> list[float]:
        """For each of the next `count` tokens of the draft, how likely it and those before it are right."""
        lookup = self.lookup
        if not lookup.next:
            return []
        lengths = (min(lookup.length + i, lookup.longest) for i in range(count))
        return list(accumulate(map(self.rates.rate, lengths), mul))

    def draft(self, count: int) -> list[int]:
        """The next `count` tokens."""
        return self.lookup.draft(count)
