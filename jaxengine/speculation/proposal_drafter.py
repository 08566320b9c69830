"""Drafts that something learnt proposes on the device, as the host keeps them."""

from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.drafter import Proposal, worthwhile


class ProposalDrafter:
    """A `Drafter` of what was proposed last. Each proposal is compared with the tokens that come, up to the first that
    it guessed wrong, whether a step verified it or not.

    Args:
        tokens: of the text, to which the caller appends.
        others: the rates of all requests.
    """

    def __init__(self, tokens: list[int], others: Rates) -> None:
        self.tokens = tokens
        self.rates = Rates(others.evidence, others)
        self.proposals: list[tuple[int, Proposal]] = []  # right so far, with their first tokens' positions; newest last
        self.seen = len(tokens)

    def offer(self, proposal: Proposal) -> None:
        """Of the tokens behind those that there are now."""
        self.read()
        self.proposals.append((len(self.tokens), proposal))

    def read(self) -> None:
        for position in range(self.seen, len(self.tokens)):
            self.proposals = [each for each in self.proposals if self._goes_on(*each, position)]
        self.seen = len(self.tokens)

    def chances(self, count: int) -> list[float]:
        return worthwhile(map(self.rates.rate, self._newest.chances[:count]))

    def draft(self, count: int) -> list[int]:
        return self._newest.ids[:count]

    def _goes_on(self, first: int, proposal: Proposal, position: int) -> bool:
        """Whether the token at `position` is as proposed, and more is proposed behind it."""
        number = position - first
        hit = proposal.ids[number] == self.tokens[position]
        self.rates.learn(proposal.chances[number], hit)
        return hit and number + 1 < len(proposal.ids)

    @property
    def _newest(self) -> Proposal:
        """That of the tokens behind all that are known."""
        if not self.proposals or self.proposals[-1][0] < len(self.tokens):
            return Proposal([], [])
        return self.proposals[-1][1]
