"""The search of one request: its beams, and the answers that are finished.

A step gives each beam its likeliest next tokens. Of all of these the best that do not end their text are the beams of
the next step, and those among the best that do are answers. So a beam may live on as several, as one, or not at all.

What is kept and when the search ends is as in `GenerationMixin._beam_search` of transformers 5. There each beam's whole
vocabulary is ranked. Here it is `candidates` tokens of each beam: as many as are kept and as can end a text, because no
more of one beam can be among those that count.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Beam, FinishReason, Token

Candidates = tuple[tuple[int, float], ...]  # ids with their logprobs, the likeliest first


class Branch(NamedTuple):
    """A text that is not finished: its last token behind another branch, which all that grew from that one share. So a
    step takes no longer the longer the texts are.

    length: tokens that are generated so far; total: the sum of their logprobs.
    """

    before: "Branch | None" = None
    last: Token = Token(0, 0.0)  # means nothing in a text of no tokens
    length: int = 0
    total: float = 0.0

    def extended(self, token: Token) -> "Branch":
        return Branch(self, token, self.length + 1, self.total + token.logprob)

    @property
    def tokens(self) -> tuple[Token, ...]:
        tokens, branch = [], self
        while branch.before is not None:
            tokens.append(branch.last)
            branch = branch.before
        return tuple(reversed(tokens))


class Beams:
    """
    Args:
        max_tokens: that an answer may have; one that has so many is finished by LENGTH.
        ends: ids that finish an answer, and the reason of each.
        listed: how many alternatives each token of an answer lists.
    """

    def __init__(self, search: BeamSearch, max_tokens: int, ends: Mapping[int, FinishReason], listed: int = 0) -> None:
        self.search = search
        self.max_tokens = max_tokens
        self.ends = ends
        self.listed = listed
        self.branches = [Branch()]  # by number of the beam; before the first step there is only one
        self.finished: list[Beam] = []  # the best first, at most `width`
        self.done = False
        self.noted: dict[int, Candidates] = {}

    @property
    def candidates(self) -> int:
        """How many of its likeliest tokens each beam must be given."""
        return self.search.width + len(self.ends)

    @property
    def begun(self) -> bool:
        """Whether there are as many beams as there will be."""
        return self.branches[0].length > 0

    @property
    def answers(self) -> list[Beam]:
        """What the request is told once the search is done."""
        return self.finished[: self.search.answers or self.search.width]

    def note(self, beam: int, candidates: Candidates) -> None:
        """A step has found the likeliest next tokens of `beam`, at least `candidates`, with processed logprobs."""
        self.noted[beam] = candidates

    def forget(self) -> None:
        """Steps will find the next tokens of all beams once more."""
        self.noted.clear()

    @property
    def ready(self) -> bool:
        """Whether the next tokens of all beams are noted."""
        return len(self.noted) == len(self.branches)

    def advance(self) -> list[tuple[int, int]]:
        """Go on to the next beams, or be `done`. Returns pairs (parent, child): beam `child` is now one that grew from
        what was beam `parent`. The others grew from themselves, and every parent is among these.
        """
        length = self.branches[0].length + 1
        grown = [
            (branch.total + logprob, beam, Token(id, logprob, self.noted[beam][: self.listed]))
            for beam, branch in enumerate(self.branches)
            for id, logprob in self.noted[beam][: self.candidates]
        ]
        grown.sort(key=lambda each: -each[0])
        self.noted.clear()
        for _, beam, token in grown[: self.search.width]:
            self._finish(self.branches[beam].extended(token))
        growing = [each for each in grown if each[2].id not in self.ends][: self.search.width]
        self.done = length == self.max_tokens or self._decided(growing[0][0], length)
        return [] if self.done else self._grow([(beam, token) for _, beam, token in growing])

    def _finish(self, branch: Branch) -> None:
        """Keep `branch` as an answer if it is finished and among the best."""
        reason = FinishReason.LENGTH if branch.length == self.max_tokens else self.ends.get(branch.last.id)
        if reason is not None and (branch.total > -math.inf or reason is FinishReason.LENGTH):
            self.finished.append(Beam(branch.tokens, reason, self.search.score(branch.total, branch.length)))
            self.finished.sort(key=lambda answer: -answer.score)
            del self.finished[self.search.width :]

    def _decided(self, best: float, length: int) -> bool:
        """Whether the answers will not change, where the best beam has `length` tokens and the sum `best`."""
        search = self.search
        if len(self.finished) < search.width:
            return False
        if search.early_stopping is True:
            return True
        may_grow = search.early_stopping == "never" and search.length_penalty > 0
        return search.score(best, self.max_tokens if may_grow else length) <= self.finished[-1].score

    def _grow(self, growing: list[tuple[int, Token]]) -> list[tuple[int, int]]:
        """The first child of a beam takes its place, the others those of beams that have none."""
        parents = {beam for beam, _ in growing}
        free = [beam for beam in range(self.search.width) if beam not in parents]
        branches, moves = dict[int, Branch](), []
        for parent, token in growing:
            child = parent if parent not in branches else free.pop(0)
            branches[child] = self.branches[parent].extended(token)
            if child != parent:
                moves.append((parent, child))
        self.branches = [branches[beam] for beam in range(len(branches))]
        return moves
