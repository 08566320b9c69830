"""The waiting queue: of all callers, the one that has been served fewest tokens is next.

This is the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language Models" (arXiv 2401.00588).
While two callers both have requests waiting, the tokens that each was served since differ by no more than a batch,
however many requests either has sent. The counter of a caller that returns after a pause is lifted to the least counter
of the callers present, so that absence earns nothing. Among one caller's requests the order is `Sequence.order`, so a
client's `priority` moves its own requests only.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator

from jaxengine.request.sequence import Sequence


class FairQueue:
    """Who waits, and the tokens served to each caller. Two counters compare only while both callers have requests."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []  # sorted by order
        self.counters: dict[int, int] = {}  # tokens, by caller

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)

    def lift(self, caller: int, others: Iterable[int]) -> None:
        """`caller` has a request again after it had none; `others` are the callers that have requests now."""
        present = [self.counters[other] for other in others]
        least = min(present) if present else max(self.counters.values(), default=0)
        self.counters[caller] = max(self.counters.get(caller, 0), least)

    def charge(self, caller: int, tokens: int) -> None:
        """`caller` was served `tokens` more."""
        self.counters[caller] += tokens

    def in_order(self, only: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """Those for which `only` is true, as they should be served. A `charge` between two items counts."""
        if len(self.counters) == 1:  # a step looks at a few, and 20,000 in a dictionary took it 5 ms
            yield from filter(only, [*self.waiting])
            return
        queues: dict[int, list[Sequence]] = {}
        for sequence in filter(only, self.waiting):
            queues.setdefault(sequence.request.caller, []).append(sequence)
        for queue in queues.values():
            queue.reverse()
        while queues:
            caller = min(queues, key=lambda each: (self.counters[each], queues[each][-1].order))
            yield queues[caller].pop()
            if not queues[caller]:
                del queues[caller]
