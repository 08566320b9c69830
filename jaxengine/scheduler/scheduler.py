"""Who computes what in the next step. One token budget: decodes first, then prefill chunks, first come first served.

Between callers (API keys) the waiting requests are ordered by `FairQueue`. `Admission` takes them from there to the
`RunningBatch`, each with the first chunk of its `Prefill`.

The scheduler plans one step ahead of the device: while step n computes, it plans step n+1 and assumes that no running
request stops. Two rules keep pages safe under that assumption:

- A page is released only when no dispatched step holds a row of its sequence (`in_flight` is zero).
- A sequence is preempted only when nothing at all is in flight. If `plan` must preempt, it asks the engine to drain
  first. Preemption is by recompute and takes the newest request, so the oldest one always advances.

A row may have a draft: guesses of the tokens that come next, which the step verifies. How many of them are right is
known only when the step has completed, so nothing is planned while one that verifies is in flight. Where layers keep
states, these are kept as they are in front of the draft. So the guesses that were right go through the model again, as
the first tokens of the sequence's next row.

The beams of a search are admitted, preempted and finished as one: `Sequence.members`. The first of them stands for all
where requests are queued. What they become is known only when all of them have been sampled.

The scheduler never sees an array and never blocks; time comes from the caller.
"""

import itertools
from collections.abc import Callable, Iterable

from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import Fork, PageTables
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Request, Sequence
from jaxengine.scheduler.admission import Admission
from jaxengine.scheduler.drafting import Drafting
from jaxengine.scheduler.fair_queue import FairQueue
from jaxengine.scheduler.image_planner import ImagePlanner, no_images
from jaxengine.scheduler.prefill import Prefill
from jaxengine.scheduler.running_batch import RunningBatch
from jaxengine.scheduler.state_saving import StateSaving
from jaxengine.speculation.speculator import Speculator


class Scheduler:
    """Waiting and running sequences over one page pool.

    Args:
        tables: the sequences' pages, and the tokens that a step may compute.
        slots: rows that a step can hold, and so requests that can run at once.
        rope_switch_length: a text that grows beyond this length is computed anew, once, because its keys change with
            the rotary frequencies (`ModelSpec.rope_switch_length`); 0 = never.
        adapters: how many the device holds at a time, and so how many a step can mix.
        speculator: drafts what steps verify; None without speculation.
        images: of prompts, where the model sees.
        keeps_states: whether layers do.
    """

    def __init__(
        self,
        tables: PageTables,
        slots: int,
        *,
        rope_switch_length: int = 0,
        adapters: int = 0,
        speculator: Speculator | None = None,
        images: ImagePlanner | None = None,
        keeps_states: bool = False,
    ) -> None:
        self.tables = tables
        self.token_budget = tables.token_budget
        if self.token_budget < slots:
            raise ValueError(f"a step of {self.token_budget} tokens cannot hold {slots} decoding rows")
        self.slots = slots
        self.rope_switch_length = rope_switch_length
        self.speculator = speculator
        self.images = images or no_images()
        self.keeps_states = keeps_states
        self.queue = FairQueue()
        self.batch = RunningBatch(tables, self.images, slots, adapters)
        self.prefill = Prefill(self.token_budget, self.images)
        self.saving = StateSaving(tables)
        self.admission = Admission(self.queue, self.batch, self.prefill, self.saving, rope_switch_length)
        self.drafting = Drafting(tables, rope_switch_length)
        self.preemptions = 0

    @property
    def pool(self) -> PagePool:
        return self.tables.pool

    @property
    def idle(self) -> bool:
        return not (self.queue.waiting or self.batch.running or self.batch.leaving)

    def add(self, sequence: Sequence) -> None:
        """Queue a new request."""
        caller = sequence.request.caller
        if all(each.request.caller != caller for each in self.sequences()):
            self.queue.lift(caller, {each.request.caller for each in self.sequences()})
        self.queue.add(sequence)

    def check(self, request: Request) -> None:
        """Raises ValueError, naming field and limit, if no step will ever have room for what must not be cut."""
        self.images.check(request, self.token_budget - self.slots + 1)

    # --- planning -------------------------------------------------------------------------------------------------

    def plan(self, only: Callable[[Sequence], bool] = lambda _: True) -> Plan:
        """The next step, of the sequences for which `only` is true. Its rows count as dispatched from now on.

        Running sequences for which `only` is false are preempted: the others might otherwise wait for their pages and
        slots for ever. So `only` must not exclude a running sequence while a step is in flight.
        """
        for sequence in [s for s in self.batch.running if s.first and not only(s)]:
            self._preempt(sequence)
        plan = Plan(ahead=self.batch.step_in_flight)
        self._plan_running(plan)
        if not plan.drain:
            self.admission.admit(plan, only)
            self.prefill.lengthen_chunks(plan)
            if self.tables.snapshots is not None:
                self.saving.add(plan)
        if self.speculator and plan.decodes:
            self.drafting.add(plan, self.speculator, len(self.batch.running))
        for row in plan.rows:
            sequence = row.sequence
            sequence.computed += row.count
            sequence.again = 0
            sequence.length += row.samples
            sequence.in_flight += 1
            self.queue.charge(sequence.request.caller, row.samples - len(row.draft))
        return plan

    def needs_tokens(self, plan: Plan) -> bool:
        """Whether the step of `plan`, which is in flight, must complete before the next is planned: it verifies drafts,
        or the next one is likely to, or beams grow.
        """
        if plan.verifies or plan.grows_beams:
            return True
        if self.speculator is None or not plan.decodes or (self.queue.waiting and self.batch.free_slots):
            return False
        return self.drafting.expects(plan, self.speculator)

    def _plan_running(self, plan: Plan) -> None:
        """A row for each running sequence with something to compute: decodes first, then unfinished prefills."""
        self._switch_rope(plan)
        if not plan.drain:
            self._grow_running(plan)
        if plan.drain:
            return
        prefilling = []
        for sequence in self.batch.running:
            next_token = sequence.computed + sequence.again
            if next_token < max(sequence.length - 1, sequence.images_end):
                prefilling.append(sequence)
            elif sequence.exhausted or next_token == sequence.length:  # it waits for the other beams
                self.images.rest(sequence)
            elif self.images.lacks(sequence):
                prefilling.append(sequence)
            else:
                plan.add(Row(sequence, sequence.computed, 1 + sequence.again, 1, again=sequence.again))
        for sequence in prefilling:
            self.prefill.add_chunk(sequence, plan)

    def _switch_rope(self, plan: Plan) -> None:
        """Have the sequences computed anew that have grown beyond `rope_switch_length`."""
        for sequence in [s for s in self.batch.running if s.outgrows_rope(self.rope_switch_length) and not s.exhausted]:
            if self.batch.step_in_flight:
                plan.drain = True
                return
            if sequence.slot is not None:
                self._preempt(sequence)

    def _grow_running(self, plan: Plan) -> None:
        for sequence in [s for s in self.batch.running if s.length > s.page_capacity and not s.exhausted]:
            if sequence.slot is not None and not self._grow(sequence, plan):
                return

    def _grow(self, sequence: Sequence, plan: Plan) -> bool:
        """Give `sequence` the pages of its next step, preempting the newest if need be; False if `plan` must drain."""
        count = self.tables.need(sequence).next_step
        while count > self.pool.available:
            if self.batch.step_in_flight:
                plan.drain = True
                return False
            self._preempt(self.batch.running[-1])
            if sequence.slot is None:
                return True
        if count:
            self.tables.grow(sequence, count)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.representative.preemptions += 1
        for member in sequence.members:
            assert not member.in_flight
            self.batch.leave(member)
        self.queue.add(sequence.representative)

    # --- beams ----------------------------------------------------------------------------------------------------

    def grow_beams(self, first: Sequence, moves: Iterable[tuple[int, int]]) -> list[Fork]:
        """Each beam of the search that `first` stands for has a token more. Of `moves`, (parent, child) each, the child
        is a copy of the parent first.
        """
        assert first.beams is not None
        forks, members = [], first.members
        for parent, child in moves:
            forks.append(self.tables.fork(members[parent], members[child]))
            members[child].become(members[parent])
        for member, branch in zip(members, first.beams.branches, strict=True):
            member.tokens.append(branch.last.id)
            member.length += 1
            if branch.length == 1 and member is not first:  # it has been asleep
                self.batch.run(member)
        return forks

    # --- completing -----------------------------------------------------------------------------------------------

    def complete(self, plan: Plan) -> None:
        """The step of `plan` has run: its rows are no longer in flight, and others can find the pages that it filled.

        The caller has appended the sampled tokens to their sequences and finished those that stopped.
        """
        for row in plan.rows:
            sequence, written = row.sequence, row.start + row.count
            sequence.in_flight -= 1
            if sequence.beams or row.draft:  # what was sampled may not be its next tokens
                sequence.length = len(sequence.tokens)
            if row.draft:
                written = self._verified(row)
            self.tables.offer(sequence, written)
            if self.tables.windowed:
                self.tables.release_behind_windows(sequence, written)
            if sequence.images:
                self.images.passed(sequence, written)
        self.saving.complete(plan)
        self.batch.vacate_completed()

    def _verified(self, row: Row) -> int:
        """The step has verified the row's draft. How much it has written: what was computed behind the first wrong
        guess is worth nothing, and where layers keep states nothing behind the first guess.
        """
        sequence, known = row.sequence, row.start + row.count - len(row.draft)
        written = max(row.start, sequence.length - 1)
        self.queue.charge(sequence.request.caller, max(0, written - known))
        if self.keeps_states:
            sequence.again = max(0, written - known)
            written -= sequence.again
        sequence.computed = written
        return written

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End `sequence`, wherever it is. Its pages are released as soon as no dispatched step can write them.

        The first reason counts. The caller must report ERROR for every row that is not finite, even if its sequence has
        ended: the last step of a cancelled sequence may still fill a page, which must not be shared.
        """
        for member in sequence.members:
            self._finish(member, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if reason is FinishReason.ERROR:
            sequence.nonfinite = True
            self.tables.forget(sequence)
            self.images.forget(sequence)
        if sequence.finish is not FinishReason.NOT_FINISHED:
            return
        sequence.finish = reason
        if self.speculator:
            self.speculator.remember(sequence)
        if sequence.slot is not None:
            self.batch.leave(sequence)
        elif sequence.first:
            self.queue.remove(sequence)

    def reset(self) -> None:
        """The cache's content is lost: every live sequence goes back to waiting, its tokens intact."""
        for sequence in [each for each in self.batch.reset() if each.first]:
            sequence.preemptions += 1  # what it finds in the cache from now on may be its own work
            self.queue.add(sequence)

    def sequences(self) -> Iterable[Sequence]:
        """Every live sequence, the running ones first."""
        return itertools.chain(self.batch.running, self.queue.waiting)
