"""Behind which tokens of a prompt states are copied, so that others can start there; see `cache/snapshots.py`.

Two places pay: the last page's end of a prompt, behind which the next turn of its conversation goes on, and where a
prompt leaves what it has in common with others: instructions, a document. A chunk ends there, and what is left takes a
step more. So nothing is saved that is soon computed again.
"""

import bisect
from collections.abc import Iterable

from jaxengine.cache.page_tables import PageTables
from jaxengine.cache.snapshots import Snapshots
from jaxengine.request.plan import Plan, Save
from jaxengine.request.sequence import Sequence

LEAST_TOKENS = 512  # from one save to the next, or from where a sequence starts


class StateSaving:
    """
    Args:
        tables: of all sequences; without snapshots nothing is saved.
    """

    def __init__(self, tables: PageTables) -> None:
        self.tables = tables
        self.least_tokens = LEAST_TOKENS

    @property
    def _snapshots(self) -> Snapshots:
        assert self.tables.snapshots is not None
        return self.tables.snapshots

    def choose(self, sequence: Sequence, others: Iterable[Sequence]) -> None:
        """Where states of `sequence` are saved, which has just got its pages; `others` are computing their prompts."""
        if self.tables.snapshots is None or not self.tables.may_share(sequence):
            return
        size, last = self.tables.pool.page_size, self.tables.startable(sequence)
        common = (in_common(sequence.prefix_keys, other.prefix_keys) for other in others)
        shared = min(last, max(self.tables.cached_pages(sequence), *common, 0))
        behind = sequence.computed
        for at in (shared * size, last * size):
            if at - behind >= self.least_tokens and sequence.prefix_keys[at // size - 1] not in self._snapshots:
                sequence.saves.append(at)
                behind = at

    def add(self, plan: Plan) -> None:
        """Plan the copies of states behind the rows of `plan` that end where some are saved."""
        for row in [row for row in plan.rows if row.sequence.saves]:
            sequence, end = row.sequence, row.start + row.count
            for at in [at for at in sequence.saves if row.start < at <= end]:
                taken = self._snapshots.take() if at == end else None  # an image that must not be cut may pass it
                if taken is None:
                    sequence.saves.remove(at)
                else:
                    plan.saves.append(Save(sequence, at, taken))

    def complete(self, plan: Plan) -> None:
        """The step of `plan` has run, and the pages that it filled are offered."""
        for sequence, at, slot in plan.saves:
            sequence.saves.remove(at)
            pages = at // self.tables.pool.page_size
            if pages <= sequence.offered_pages and not sequence.nonfinite:
                self._snapshots.keep(slot, sequence.prefix_keys[pages - 1])
            else:
                self._snapshots.give_back(slot)


def in_common(one: list[bytes], other: list[bytes]) -> int:
    """How many of their first keys are the same. A key stands for all pages up to its own."""
    return bisect.bisect_left(range(min(len(one), len(other))), True, key=lambda i: one[i] != other[i])
