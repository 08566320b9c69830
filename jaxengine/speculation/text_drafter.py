"""Drafts from the request's own text."""

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.drafter import Proposal, behind_match
from jaxengine.speculation.prompt_lookup import PromptLookup


class TextDrafter:
    """A `Drafter`.

    Args:
        tokens: of the text, to which the caller appends.
        others: the rates of all requests.
        source: what an encoder reads, where there is one. An answer may repeat that as another repeats its prompt.
    """

    def __init__(self, tokens: list[int], options: Speculation, others: Rates, source: list[int] | None = None) -> None:
        self.tokens, self.source = tokens, source or []
        self.lookup = PromptLookup([*self.source, *tokens] if source else tokens, options)
        self.rates = Rates(others.evidence, others)

    def offer(self, proposal: Proposal) -> None:
        """The text is all that it drafts from."""

    def read(self) -> None:
        lookup = self.lookup
        if self.source:
            lookup.tokens += self.tokens[len(lookup.tokens) - len(self.source) :]
        if not lookup.begun:
            lookup.read_part()
            return
        while lookup.read < len(lookup.tokens):
            drafted, length = lookup.next > 0, lookup.length
            hit = lookup.follow()
            if drafted:
                self.rates.learn(length, hit)

    def chances(self, count: int) -> list[float]:
        return behind_match(self.rates, self.length, self.lookup.longest, count if self.lookup.next else 0)

    @property
    def length(self) -> int:
        """Tokens of the match."""
        return self.lookup.length

    def draft(self, count: int) -> list[int]:
        return self.lookup.draft(count)
