"""Whose turn it is in the queue: among callers, whoever has been served fewest tokens.

This is the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language Models": while two callers
have requests waiting, what they have been served since differs by no more than a batch, however many requests either
has sent. Who comes anew is counted as having had as much as the least served one there, so that absence earns nothing.
Within a caller the order is `Sequence.order`; so a client's `priority` moves its own requests only.
"""

from collections.abc import Iterable, Iterator

from jaxengine.request.sequence import Sequence


class FairQueue:
    """Tokens served to each caller. Comparable only while both are there."""

    def __init__(self) -> None:
        self.counters: dict[int, int] = {}

    def lift(self, caller: int, others: Iterable[int]) -> None:
        """`caller` has a request again, after a time without; `others` have one too."""
        there = [self.counters[other] for other in others]
        floor = min(there) if there else max(self.counters.values(), default=0)
        self.counters[caller] = max(self.counters.get(caller, 0), floor)

    def charge(self, caller: int, tokens: int) -> None:
        self.counters[caller] += tokens

    def in_order(self, waiting: Iterable[Sequence]) -> Iterator[Sequence]:
        """`waiting`, sorted by order, as they should be served; what is charged meanwhile counts."""
        queues: dict[int, list[Sequence]] = {}
        for sequence in waiting:
            queues.setdefault(sequence.request.caller, []).append(sequence)
        for queue in queues.values():
            queue.reverse()
        while queues:
            caller = min(queues, key=lambda each: (self.counters[each], queues[each][-1].order))
            yield queues[caller].pop()
            if not queues[caller]:
                del queues[caller]
