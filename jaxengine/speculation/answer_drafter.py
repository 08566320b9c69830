"""Drafts from recent answers to others."""

from collections.abc import Hashable

from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.drafter import Proposal, behind_match
from jaxengine.speculation.recent_answers import RecentAnswers


class AnswerDrafter:
    """A `Drafter`. The answer where the text's last tokens stood is followed while the text goes on like it.

    Args:
        tokens: of the text, to which the caller appends.
        scope: of the answers that the request may see.
        others: the rates of all requests.
    """

    def __init__(self, tokens: list[int], scope: Hashable, answers: RecentAnswers, others: Rates) -> None:
        self.tokens, self.scope, self.answers = tokens, scope, answers
        self.rates = Rates(others.evidence, others)
        self.seen = len(tokens)
        self.ahead, self.length = self._look_up()

    def offer(self, proposal: Proposal) -> None:
        """Answers are all that it drafts from."""

    def read(self) -> None:
        while self.seen < len(self.tokens):
            token, self.seen = self.tokens[self.seen], self.seen + 1
            if not self._goes_on(token):
                self.ahead, self.length = self._look_up()

    def chances(self, count: int) -> list[float]:
        return behind_match(self.rates, self.length, self.answers.longest, min(count, len(self.ahead)))

    def draft(self, count: int) -> list[int]:
        return self.ahead[:count]

    def _goes_on(self, token: int) -> bool:
        """Whether `token` is as in the answer that is followed, which goes on behind it."""
        if not self.ahead:
            return False
        hit = self.ahead[0] == token
        self.rates.learn(self.length, hit)
        self.ahead, self.length = self.ahead[1:], min(self.length + 1, self.answers.longest)
        return hit and bool(self.ahead)

    def _look_up(self) -> tuple[list[int], int]:
        text = self.tokens[max(0, self.seen - self.answers.longest) : self.seen]
        return self.answers.find(self.scope, text)
