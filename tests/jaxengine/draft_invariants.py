"""I26, of drafts: no step is planned while one that verifies is in flight, guesses stay within the length and the pages
that a request may have, and of those that were wrong nothing is left once their step has completed. Where layers keep
states, those that were right are computed again, and nothing else is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxengine.request.plan import Plan, Row

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine


def check_drafts(engine: FakeEngine) -> None:
    for sequence in engine.scheduler.batch.running:
        need = engine.scheduler.tables.need(sequence)
        assert 0 <= need.next_step <= need.known_tokens, f"I26: pages held for guesses make {need}"
    for sequence in [s for s in engine.scheduler.batch.running if s.in_flight == 0]:
        known, number = len(sequence.tokens), sequence.request.id
        assert sequence.length == known, f"I26: request {number} has {known} tokens and counts {sequence.length}"
        waits = sequence.beams is not None  # for the other beams
        computed, again = sequence.computed, sequence.again
        assert computed < known + waits, f"I26: request {number} has {known} tokens, and computed {computed}"
        assert not again or (engine.device.keeps_states and computed + again == known - 1), (
            f"I26: request {number} has {known} tokens, computed {computed}, and {again} are to be computed again"
        )


class DraftCheck:
    """Records the tables before a plan is made, then checks the drafts in it."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.before = {s: len(s.tables[0].pages) for s in engine.scheduler.batch.running}
        self.in_flight = bool(engine.steps)
        self.pages = 0  # that the plan's drafts took, of each table

    def __call__(self, plan: Plan) -> None:
        verifying = [step.plan for step in self.engine.steps if step.plan.verifies]
        assert not (plan.rows and verifying), "I26: planned while a step that verifies is in flight"
        drafting = [row for row in plan.rows if row.draft]
        if not drafting:
            return
        assert all(row.samples for row in plan.rows), "I26: a draft in a step that prefills"
        for row in drafting:
            self._check_row(row)
        self.pages = sum(map(self._pages_for_draft, drafting))
        left, running = self.engine.pool.available, len(self.engine.scheduler.batch.running)
        needed = running * len(self.engine.scheduler.tables.windows)
        assert not self.pages or left >= needed, f"I26: drafts leave {left} pages for {running} requests to grow"

    def _check_row(self, row: Row) -> None:
        sequence, number = row.sequence, row.sequence.request.id
        next_token = row.start + row.again
        assert next_token + 1 == len(sequence.tokens), f"I26: a draft of request {number} behind what the host knows"
        assert sequence.length <= sequence.max_length, f"I26: a draft of request {number} beyond its last token"

    def _pages_for_draft(self, row: Row) -> int:
        """How many pages of each table the plan has added for guesses alone."""
        sequence, size = row.sequence, self.engine.pool.page_size
        encoder = -(-len(sequence.encoder_input) // size)
        plain = max(encoder - (-len(sequence.tokens) // size), self.before.get(sequence, 0))
        return max(0, len(sequence.tables[0].pages) - plain)
