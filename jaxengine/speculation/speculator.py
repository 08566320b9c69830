"""How many tokens of which requests a step verifies: as many as make the most tokens per second.

A step of more tokens takes longer, and gives more tokens as far as the drafts in it are right. Both are measured: the
steps' times by size, the drafts' rates by request. A step that verifies must be at least `WORTH` times as fast.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from jaxengine.options.speculation import Speculation
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.acceptance import Rates
from jaxengine.speculation.drafter import Drafter
from jaxengine.speculation.step_times import StepTimes

WORTH = 1.05


class Room(NamedTuple):
    """A request that a step decodes, and how many tokens of a draft it may have."""

    sequence: Sequence
    most: int


class Speculator:
    """
    Args:
        sizes: of steps that verify, in tokens, ascending.
        ready: whether a step of such a size can run now.
        plain_size: of a step that only decodes so many rows.
    """

    def __init__(
        self,
        options: Speculation,
        sizes: Items[int],
        ready: Callable[[int], bool],
        plain_size: Callable[[int], int],
    ) -> None:
        self.options = options
        self.most = options.num_speculative_tokens
        self.sizes = tuple(sizes)
        self.ready = ready
        self.plain_size = plain_size
        self.times = StepTimes()
        self.rates = Rates()
        self.drafters: WeakKeyDictionary[Sequence, Drafter] = WeakKeyDictionary()
        self.start_counting()

    def start_counting(self) -> None:
        self.drafts = self.draft_tokens = 0
        self.accepted = [0] * self.most  # by position in the draft

    def stats(self) -> dict[str, Any]:
        """Its part of the engine's `Stats`."""
        return {
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_draft_tokens": tuple(self.accepted),
        }

    def choose(self, rooms: Items[Room], rows: int) -> list[list[int]]:
        """The draft of each of `rooms`, empty where none pays, in a step of `rows` rows."""
        counts = self._counts([self._chances(room) for room in rooms], rows)
        return [self._drafter(room.sequence).draft(n) if n else [] for room, n in zip(rooms, counts, strict=True)]

    def expects(self, rooms: Items[Room], rows: int) -> bool:
        """Whether drafts are likely to pay once the token of each request that the device computes now is known."""
        return any(self._counts([self._chances(room, first=1) for room in rooms], rows))

    def learn(self, sequence: Sequence, draft: Items[int], accepted: int) -> None:
        """A step has verified `draft`, and its first `accepted` tokens were right."""
        sequence.draft_tokens += len(draft)
        sequence.accepted_draft_tokens += accepted
        self.drafts += bool(draft)
        self.draft_tokens += len(draft)
        for position in range(accepted):
            self.accepted[position] += 1

    def _chances(self, room: Room, first: int = 0) -> list[float]:
        """Those of the tokens of its draft, from number `first` on."""
        count = min(room.most - first, self.most)
        return self._drafter(room.sequence).chances(first + count)[first:] if count > 0 else []

    def _drafter(self, sequence: Sequence) -> Drafter:
        """That of `sequence`, which has read all of its tokens."""
        drafter = self.drafters.get(sequence)
        if drafter is None:
            drafter = self.drafters[sequence] = Drafter(sequence.tokens, self.options, self.rates)
        drafter.read()
        return drafter

    def _counts(self, chances: list[list[float]], rows: int) -> list[int]:
        """How many tokens of each draft, whose `chances` fall, make the fastest step; 0 if that has none of them."""
        counts = [0] * len(chances)
        plain = self.times.seconds.get((self.plain_size(rows), False))
        if plain is None or not any(chances):
            return counts
        ranked = sorted(((chance, i) for i, each in enumerate(chances) for chance in each), reverse=True)
        gained = [0.0, *accumulate(chance for chance, _ in ranked)]
        best, taken = WORTH * rows / plain, 0
        for size in self.sizes:
            if size > rows and self.ready(size):
                count = min(size - rows, len(ranked))
                rate = (rows + gained[count]) / max(plain, self.times.seconds.get((size, True), plain))
                best, taken = max((best, taken), (rate, count))
        for _, i in ranked[:taken]:
            counts[i] += 1
        return counts
