"""What one request's text offers as a draft, and how likely that is right."""

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.prompt_lookup import PromptLookup

LEAST = 0.05  # a guess that is less likely right is not worth its place in a step


class Drafter:
    """
    Args:
        tokens: of the text, to which the caller appends.
        others: the rates of all requests.
        source: what an encoder reads, where there is one. An answer may repeat that as another repeats its prompt.
    """

    def __init__(self, tokens: list[int], options: Speculation, others: Rates, source: list[int] | None = None) -> None:
        self.tokens, self.source = tokens, source or []
        self.lookup = PromptLookup([*self.source, *tokens] if source else tokens, options)
        self.rates = Rates(others)

    def read(self) -> None:
        """Read the tokens that were appended, and learn whether they were what a draft would have been.

        So the rates are right too while no step verifies anything.
        """
        lookup = self.lookup
        if self.source:
            lookup.tokens += self.tokens[len(lookup.tokens) - len(self.source) :]
        while lookup.read < len(lookup.tokens):
            drafted, length = lookup.next > 0, lookup.length
            hit = lookup.follow()
            if drafted:
                self.rates.learn(length, hit)

    def chances(self, count: int) -> list[float]:
        """For each of the next `count` tokens of the draft, how likely it and those before it are right. The list ends
        where that is below `LEAST`.
        """
        lookup, chance, chances = self.lookup, 1.0, []
        for length in range(lookup.length, lookup.length + count if lookup.next else 0):
            chance *= self.rates.rate(min(length, lookup.longest))
            if chance < LEAST:
                break
            chances.append(chance)
        return chances

    def draft(self, count: int) -> list[int]:
        """The next `count` tokens."""
        return self.lookup.draft(count)
