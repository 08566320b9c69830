"""Admission: which waiting sequences a step begins, strictly in the queue's order, while slots, budget and pages last.

Two exceptions. A sequence for whose adapter there is no slot is passed by others, but only by so many with adapters
(`MOST_PASSING`): then slots fall free. And a sequence whose prefix a running one is just computing keeps waiting until
it can share that prefix, and others pass it. So of several requests that arrive together with one prompt, only the
first computes it.
"""

from collections.abc import Callable

from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import PageTable, Sequence
from jaxengine.scheduler.fair_queue import FairQueue
from jaxengine.scheduler.prefill import Prefill
from jaxengine.scheduler.running_batch import RunningBatch
from jaxengine.scheduler.state_saving import StateSaving

MOST_PASSING = 64  # requests that may be begun before an older one that waits for a slot for its adapter


class Admission:
    """Takes sequences from the queue into the running batch, each with the first chunk of its prefill.

    Args:
        rope_switch_length: as of the `Scheduler`.
    """

    def __init__(
        self, queue: FairQueue, batch: RunningBatch, prefill: Prefill, saving: StateSaving, rope_switch_length: int
    ) -> None:
        self.queue, self.batch, self.prefill, self.saving = queue, batch, prefill, saving
        self.tables = batch.tables
        self.rope_switch_length = rope_switch_length
        self.most_passing = MOST_PASSING

    def admit(self, plan: Plan, only: Callable[[Sequence], bool]) -> None:
        """Begin the waiting sequences for which there is room, of those for which `only` is true."""
        batch = self.batch
        if not self.queue.waiting or not batch.free_slots:
            return
        reserved = sum(self.tables.need(each).reserve for each in batch.running)
        prefilling = [s for s in batch.running if s.offered_pages < len(s.prefix_keys)]
        passed: list[Sequence] = []  # wait for a slot for their adapter
        barred = False  # no other with an adapter may pass them
        for sequence in self.queue.in_order(only):
            if not self._step_has_room(sequence, plan):
                return
            if sequence.adapter is not None and (barred or not batch.adapters.has_room(sequence.adapter)):
                passed.append(sequence)
                barred |= sequence.passed_by >= self.most_passing
                continue
            if any(self.tables.waits_for_prefix(sequence, other) for other in prefilling):
                plan.waiting_for_prefix.append(sequence)
                continue
            prefix = self._prefix_that_fits(sequence, self.tables.pool.available - reserved)
            if prefix is None or not self._has_chunk(sequence, prefix, plan):
                return
            self._start(sequence, prefix, prefilling, plan)
            for older in passed if sequence.adapter else ():
                older.passed_by += 1
                barred |= older.passed_by >= self.most_passing
            reserved += sum(self.tables.need(each).reserve for each in sequence.members if not each.asleep)
            prefilling.append(sequence)

    def _step_has_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether there are slots, tokens and encoder tokens for one sequence more.

        Each sequence in `waiting_for_prefix` has a claim to a slot: those that pass it leave a slot free for it. The
        encoder's budget equals the decoder's; its input cannot be cut, so the first of a step may have any length.
        """
        claimed = sum(len(each.members) for each in (*plan.waiting_for_prefix, sequence))
        budget = self.prefill.token_budget
        if len(self.batch.free_slots) < claimed or plan.tokens >= budget:
            return False
        return not plan.encoder_rows or plan.encoder_tokens + len(sequence.encoder_input) <= budget

    def _prefix_that_fits(self, sequence: Sequence, free_pages: int) -> list[PageTable] | None:
        """The cached prefix of `sequence`, or None if it cannot start with `free_pages`."""
        if sum(self.tables.least_to_start(each) for each in sequence.members if not each.asleep) > free_pages:
            return None
        prefix = self.tables.cached_prefix(sequence)
        need = self.tables.need_to_start(sequence, prefix)
        need += sum(self.tables.need_of_beam(beam) for beam in sequence.members[1:])
        return prefix if need <= free_pages else None

    def _has_chunk(self, sequence: Sequence, prefix: list[PageTable], plan: Plan) -> bool:
        """Whether this step has room for the images that `sequence` begins with behind `prefix`."""
        return self.prefill.has_chunk(sequence, len(prefix[0].pages) * self.tables.pool.page_size, plan)

    def _start(self, sequence: Sequence, prefix: list[PageTable], prefilling: list[Sequence], plan: Plan) -> None:
        """Give `sequence` pages and a slot, and plan its encoder input and its first chunk; likewise its beams."""
        self.queue.remove(sequence)
        self.tables.start(sequence, prefix)
        if sequence.preemptions == 0:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_length)
            self.queue.charge(sequence.request.caller, len(sequence.request.prompt) - sequence.cached_tokens)
        if sequence.encoder_input:
            plan.encoder_rows.append(Row(sequence, 0, len(sequence.encoder_input), 0, of_encoder=True))
        for member in sequence.members:
            self.batch.join(member, plan)
            if member.outgrows_rope(self.rope_switch_length):
                member.rope_length = member.length
            if not member.asleep:
                self.saving.choose(member, prefilling)
                self.prefill.add_chunk(member, plan)
