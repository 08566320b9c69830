"""The drafts of a step that only decodes: which of its rows may have one, and how long it may be."""

from jaxengine.cache.page_tables import PageTables
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.speculator import Room, Speculator


class Drafting:
    """
    Args:
        tables, rope_switch_length: as of the `Scheduler`.
    """

    def __init__(self, tables: PageTables, rope_switch_length: int) -> None:
        self.tables = tables
        self.rope_switch_length = rope_switch_length

    def expects(self, plan: Plan, speculator: Speculator) -> bool:
        """Whether the rows of `plan` are likely to have drafts that pay once their tokens are known."""
        rooms = [self.room(row.sequence) for row in plan.rows]
        return speculator.expects(rooms)

    def add(self, plan: Plan, speculator: Speculator, running: int) -> None:
        """Give the rows of `plan` the drafts that pay, as far as there are pages for them without those that so many
        `running` sequences may need next. The next step must hold what is right of them and a token of each of the
        others, if layers keep states.
        """
        if any(row.sequence.length > len(row.sequence.tokens) or row.of_prompt for row in plan.rows):
            return  # the host does not know all that these rows feed, or they are prompts of one token
        rooms, others = [self.room(row.sequence) for row in plan.rows], running - len(plan.rows)
        if speculator.may_propose(len(rooms)):  # what drafts may need the pages too
            for room in rooms:
                self.tables.grow_for_draft(room.sequence, min(room.most, speculator.most), spare=running)
        for row, draft in zip(plan.rows, speculator.choose(rooms, plan.tokens), strict=True):
            count = max(0, min(len(draft), self.tables.token_budget - plan.tokens - others))
            if row.sequence.matcher is not None and count > 0:
                count = row.sequence.matcher.allows(draft[:count])
            count = self.tables.grow_for_draft(row.sequence, count, spare=running)
            row.add_draft(draft[:count])
            plan.tokens += count

    def room(self, sequence: Sequence) -> Room:
        """How many tokens of a draft a row of `sequence` may have: one more is sampled behind the last of them."""
        foreseen = sequence.matcher is None or sequence.matcher.foresees
        foreseen = foreseen and not sequence.params.samplers.mirostat_tau  # each token moves the bound of the next
        if not foreseen or sequence.beams or sequence.finish is not FinishReason.NOT_FINISHED:
            return Room(sequence, 0)
        end = sequence.max_length
        if sequence.rope_length <= self.rope_switch_length:
            end = min(end, self.rope_switch_length)
        return Room(sequence, max(0, end - len(sequence.tokens) - 1))
