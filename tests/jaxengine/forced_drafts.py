"""A speculator that knows the answers and no clock: it drafts what a test wants, right or wrong, at any cost."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Items

from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.speculator import Room, Speculator

KINDS = ("right", "wrong", "turning", "random")
UNLIMITED = 1 << 30


class ForcedDrafts(Speculator):
    """
    Args:
        future: the tokens that will follow those of a sequence, as far as they are known.
        chance: decides all that is left open.
        kinds: what a draft may be: right, wrong, turning from right to wrong at any token, or random ids.
        vocab: ids that a guess may have are below.
        most: tokens of a draft.
        largest: tokens of a step that verifies.
        share: of the rows that have room for a draft, how many get one.
        waiting: how often the next step waits for this one's tokens, though this one verifies nothing.
    """

    def __init__(
        self,
        future: Callable[[Sequence], list[int]],
        chance: random.Random,
        *,
        kinds: Items[str] = KINDS,
        vocab: int,
        most: int = 6,
        largest: int = UNLIMITED,
        share: float = 0.7,
        waiting: float = 0.4,
    ) -> None:
        self.future = future
        self.chance = chance
        self.kinds = kinds
        self.vocab = vocab
        self.most = most
        self.largest = largest
        self.share = share
        self.waiting = waiting
        self.proposer = self.answers = None
        self.start_counting()

    def choose(self, rooms: Items[Room], tokens: int) -> list[list[int]]:
        left, drafts = self.largest - tokens, []
        for room in rooms:
            count = min(room.most, self.most, left)
            drafts.append(self._draft(room.sequence, count) if self.chance.random() < self.share else [])
            left -= len(drafts[-1])
        return drafts

    def expects(self, rooms: Items[Room]) -> bool:
        return self.chance.random() < self.waiting

    def note(self, plan: Plan, size: int, seconds: float, answered: int) -> None:
        """It has no use for a clock."""

    def _draft(self, sequence: Sequence, count: int) -> list[int]:
        """Of `count` tokens; if it may be wrong, of any number up to that."""
        kind = self.chance.choice(self.kinds)
        future = self.future(sequence)[:count]
        future += self.chance.choices(range(self.vocab), k=count - len(future))  # behind the answer's end
        if kind == "right":
            return future
        count = self.chance.randint(0, count)
        if kind == "random":
            return self.chance.choices(range(self.vocab), k=count)
        turn = self.chance.randint(0, count) if kind == "turning" else 0
        return future[:turn] + [(token + 1) % self.vocab for token in future[turn:count]]
