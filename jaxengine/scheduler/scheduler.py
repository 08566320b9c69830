"""Who computes what in the next step. One token budget: decodes first, then prefill chunks, first come first served.

Between callers (API keys) the waiting requests are ordered by `FairQueue`.

The scheduler plans one step ahead of the device: while step n computes, it plans step n+1 and assumes that no running
request stops. Two rules keep pages safe under that assumption:

- A page is released only when no dispatched step holds a row of its sequence (`in_flight` is zero).
- A sequence is preempted only when nothing at all is in flight. If `plan` must preempt, it asks the engine to drain
  first. Preemption is by recompute and takes the newest request, so the oldest one always advances.

A row may have a draft: guesses of the tokens that come next, which the step verifies. How many of them are right is
known only when the step has completed, so nothing is planned while one that verifies is in flight.

The beams of a search are admitted, preempted and finished as one: `Sequence.members`. The first of them stands for all
where requests are queued. What they become is known only when all of them have been sampled.

The scheduler never sees an array and never blocks; time comes from the caller.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable

from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import Fork, PageTables
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import PageTable, Request, Sequence
from jaxengine.scheduler.adapter_slots import AdapterSlots
from jaxengine.scheduler.drafting import Drafting
from jaxengine.scheduler.fair_queue import FairQueue
from jaxengine.scheduler.image_planner import ImagePlanner, no_images
from jaxengine.speculation.speculator import Speculator

MOST_PASSING = 64  # requests that may be begun before an older one that waits for a slot for its adapter


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
    ) -> None:
        self.tables = tables
        self.adapters = AdapterSlots(adapters)
        self.most_passing = MOST_PASSING
        self.token_budget = tables.token_budget
        if self.token_budget < slots:
            raise ValueError(f"a step of {self.token_budget} tokens cannot hold {slots} decoding rows")
        self.slots = slots
        self.rope_switch_length = rope_switch_length
        self.speculator = speculator
        self.images = images or no_images()
        self.drafting = Drafting(tables, rope_switch_length)
        self.waiting: list[Sequence] = []  # sorted by order
        self.running: list[Sequence] = []  # sorted by order
        self.leaving: list[Sequence] = []  # finished, but a dispatched step still writes their pages
        self.free_slots = list(range(slots))[::-1]
        self.preemptions = 0
        self.fair_queue = FairQueue()

    @property
    def pool(self) -> PagePool:
        return self.tables.pool

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.leaving)

    def add(self, sequence: Sequence) -> None:
        """Queue a new request."""
        caller = sequence.request.caller
        if all(each.request.caller != caller for each in self.sequences()):
            self.fair_queue.lift(caller, {each.request.caller for each in self.sequences()})
        self._queue(sequence)

    def check(self, request: Request) -> None:
        """Raises ValueError, naming field and limit, if no step will ever have room for what must not be cut."""
        self.images.check(request, self.token_budget - self.slots + 1)

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    # --- planning -------------------------------------------------------------------------------------------------

    def plan(self, only: Callable[[Sequence], bool] = lambda _: True) -> Plan:
        """The next step, of the sequences for which `only` is true. Its rows count as dispatched from now on.

        Running sequences for which `only` is false are preempted: the others might otherwise wait for their pages and
        slots for ever. So `only` must not exclude a running sequence while a step is in flight.
        """
        for sequence in [s for s in self.running if s.first and not only(s)]:
            self._preempt(sequence)
        plan = Plan(ahead=self._step_in_flight())
        self._plan_running(plan)
        if not plan.drain:
            self._admit(plan, only)
            self._spend_rest(plan)
        if self.speculator and plan.decode_only:
            self.drafting.add(plan, self.speculator, len(self.running))
        for row in plan.rows:
            sequence = row.sequence
            sequence.computed += row.count
            sequence.length += row.samples
            sequence.in_flight += 1
            self.fair_queue.charge(sequence.request.caller, row.samples - len(row.draft))
        return plan

    def needs_tokens(self, plan: Plan) -> bool:
        """Whether the step of `plan`, which is in flight, must complete before the next is planned: it verifies drafts,
        or the next one is likely to, or beams grow.
        """
        if plan.verifies or plan.grows_beams:
            return True
        if self.speculator is None or not plan.decode_only or (self.waiting and self.free_slots):
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
        for sequence in self.running:
            if sequence.computed < max(sequence.length - 1, sequence.images_end):
                prefilling.append(sequence)
            elif sequence.exhausted or sequence.computed == sequence.length:  # it waits for the other beams
                self.images.rest(sequence)
            elif self.images.lacks(sequence):
                prefilling.append(sequence)
            else:
                plan.add(Row(sequence, sequence.computed, 1, 1))
        for sequence in prefilling:
            self._add_chunk(sequence, plan)

    def _switch_rope(self, plan: Plan) -> None:
        """Have the sequences computed anew that have grown beyond `rope_switch_length`."""
        for sequence in [s for s in self.running if self._outgrows_rope(s) and not s.exhausted]:
            if self._step_in_flight():
                plan.drain = True
                return
            if sequence.slot is not None:
                self._preempt(sequence)

    def _outgrows_rope(self, sequence: Sequence) -> bool:
        return sequence.rope_length <= self.rope_switch_length < sequence.length

    def _grow_running(self, plan: Plan) -> None:
        for sequence in [s for s in self.running if s.length > s.page_capacity and not s.exhausted]:
            if sequence.slot is not None and not self._grow(sequence, plan):
                return

    def _grow(self, sequence: Sequence, plan: Plan) -> bool:
        """Give `sequence` the pages of its next step, preempting the newest if need be; False if `plan` must drain."""
        count = self.tables.need(sequence).next_step
        while count > self.pool.available:
            if self._step_in_flight():
                plan.drain = True
                return False
            self._preempt(self.running[-1])
            if sequence.slot is None:
                return True
        if count:
            self.tables.grow(sequence, count)
        return True

    def _step_in_flight(self) -> bool:
        """Whether a dispatched step has not been completed, so that nothing may be preempted."""
        return bool(self.leaving) or any(s.in_flight for s in self.running)

    def _add_chunk(self, sequence: Sequence, plan: Plan) -> None:
        """As much of the remaining prefill as half of the free budget holds: a long prompt must not stop short ones."""
        free = self.token_budget - plan.tokens
        count = self.images.take(
            sequence, sequence.computed, self._share(sequence, sequence.computed, free), free, plan
        )
        if count > 0:
            samples = sequence.computed + count == sequence.length
            plan.add(Row(sequence, sequence.computed, count, int(samples)))

    def _share(self, sequence: Sequence, start: int, free: int) -> int:
        return min(sequence.length - start, (free + 1) // 2)

    def _spend_rest(self, plan: Plan) -> None:
        """Lengthen the step's prefill chunks by the budget that is left, first come first served."""
        for row in plan.rows:
            if not row.samples and self.images.may_lengthen(row):
                start = row.start + row.count
                left = row.sequence.length - start
                more = min(self.token_budget - plan.tokens, left)
                more = self.images.take(row.sequence, start, more, more, plan)
                row.count += more
                row.samples = int(more == left)
                plan.tokens += more

    # --- admission ------------------------------------------------------------------------------------------------

    def _admit(self, plan: Plan, only: Callable[[Sequence], bool]) -> None:
        """Move waiting sequences to running, strictly in the queue's order, while slots, budget and pages last.

        Two exceptions. A sequence for whose adapter there is no slot is passed by others, but only by so many with
        adapters (`MOST_PASSING`): then slots fall free. And a sequence whose prefix a running one is just computing
        keeps waiting until it can share that prefix, and others pass it. So of several requests that arrive together
        with one prompt, only the first computes it. Each sequence in `waiting_for_prefix` has a claim to a slot: those
        that pass it leave a slot free for it, and the search ends when all free slots are claimed.
        """
        if not self.waiting or not self.free_slots:
            return
        reserved = sum(self.tables.need(each).reserve for each in self.running)
        prefilling = [s for s in self.running if s.offered_pages < len(s.prefix_keys)]
        passed: list[Sequence] = []  # wait for a slot for their adapter
        barred = False  # no other with an adapter may pass them
        for sequence in self.fair_queue.in_order([s for s in self.waiting if only(s)]):
            claimed = sum(len(each.members) for each in (*plan.waiting_for_prefix, sequence))
            if len(self.free_slots) < claimed or plan.tokens >= self.token_budget:
                return
            if not self._encoder_has_room(sequence, plan):
                return
            if sequence.adapter is not None and (barred or not self.adapters.has_room(sequence.adapter)):
                passed.append(sequence)
                barred |= sequence.passed_by >= self.most_passing
                continue
            if any(self.tables.waits_for_prefix(sequence, other) for other in prefilling):
                plan.waiting_for_prefix.append(sequence)
                continue
            prefix = self._prefix_that_fits(sequence, self.pool.available - reserved)
            if prefix is None or not self._may_see(sequence, prefix, plan):
                return
            self._start(sequence, prefix, plan)
            for older in passed if sequence.adapter else ():
                older.passed_by += 1
                barred |= older.passed_by >= self.most_passing
            reserved += sum(self.tables.need(each).reserve for each in sequence.members if not each.asleep)
            prefilling.append(sequence)

    def _encoder_has_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether this step's encoder budget, which equals the decoder's, has room for the sequence's encoder input.

        An encoder input cannot be cut, so the first of a step may have any length.
        """
        return not plan.encoder_rows or plan.encoder_tokens + len(sequence.encoder_input) <= self.token_budget

    def _prefix_that_fits(self, sequence: Sequence, free_pages: int) -> list[PageTable] | None:
        """The cached prefix of `sequence`, or None if it cannot start with `free_pages`."""
        if sum(self.tables.least_to_start(each) for each in sequence.members if not each.asleep) > free_pages:
            return None
        prefix = self.tables.cached_prefix(sequence)
        need = self.tables.need_to_start(sequence, prefix)
        need += sum(self.tables.need_of_beam(beam) for beam in sequence.members[1:])
        return prefix if need <= free_pages else None

    def _may_see(self, sequence: Sequence, prefix: list[PageTable], plan: Plan) -> bool:
        """Whether this step has room for the images that `sequence` begins with behind `prefix`."""
        if not self.images.bounds(sequence):
            return True
        start, free = len(prefix[0].pages) * self.pool.page_size, self.token_budget - plan.tokens
        return self.images.reach(sequence, start, self._share(sequence, start, free), free, plan) > 0

    def _start(self, sequence: Sequence, prefix: list[PageTable], plan: Plan) -> None:
        """Give `sequence` a slot and pages, and plan its encoder input and its first chunk."""
        self.waiting.remove(sequence)
        self.tables.start(sequence, prefix)
        if sequence.preemptions == 0:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_length)
            self.fair_queue.charge(sequence.request.caller, len(sequence.request.prompt) - sequence.cached_tokens)
        self._seat(sequence, plan)
        if sequence.encoder_input:
            plan.encoder_rows.append(Row(sequence, 0, len(sequence.encoder_input), 0, of_encoder=True))
        self._add_chunk(sequence, plan)
        for beam in sequence.members[1:]:
            self._seat(beam, plan)
            if not beam.asleep:
                self._add_chunk(beam, plan)

    def _seat(self, sequence: Sequence, plan: Plan) -> None:
        """Give `sequence` a slot, and one of the device's stacks for its adapter; it runs unless it is asleep."""
        sequence.slot = self.free_slots.pop()
        if self._outgrows_rope(sequence):
            sequence.rope_length = sequence.length
        if sequence.adapter is not None:
            sequence.adapter_slot, missing = self.adapters.take(sequence.adapter)
            plan.placements += [(sequence.adapter_slot, sequence.adapter)] if missing else []
        if not sequence.asleep:
            bisect.insort(self.running, sequence, key=lambda s: s.order)
        plan.admitted.append(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.members[0].preemptions += 1
        for member in sequence.members:
            self._stop(member)
            self._vacate(member)
        self._queue(sequence.members[0])

    def _stop(self, sequence: Sequence) -> None:
        """No further step has a row of `sequence`, which has a slot."""
        if not sequence.asleep:
            self.running.remove(sequence)

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
                bisect.insort(self.running, member, key=lambda s: s.order)
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
            if row.draft:  # what was computed behind the first wrong guess is worth nothing
                sequence.computed = written = max(row.start, sequence.length - 1)
                self.fair_queue.charge(sequence.request.caller, max(0, written - row.start - 1))
            self.tables.offer(sequence, written)
            if self.tables.windowed:
                self.tables.release_behind_windows(sequence, written)
            if sequence.images:
                self.images.passed(sequence, written)
        for sequence in [s for s in self.leaving if s.in_flight == 0]:
            self.leaving.remove(sequence)
            self._vacate(sequence)

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
            self._stop(sequence)
            if sequence.in_flight:
                self.leaving.append(sequence)
            else:
                self._vacate(sequence)
        elif sequence.first:
            self.waiting.remove(sequence)

    def reset(self) -> None:
        """The cache's content is lost: every live sequence goes back to waiting, its tokens intact."""
        for sequence in [member for each in (*self.running, *self.leaving) for member in each.members]:
            sequence.in_flight = 0
            if sequence.slot is not None:
                self._vacate(sequence)
        for sequence in [each for each in self.running if each.first]:
            sequence.preemptions += 1  # what it finds in the cache from now on may be its own work
            self._queue(sequence)
        self.running, self.leaving = [], []
        self.pool.reset()
        self.adapters.reset()
        self.images.reset()

    def _vacate(self, sequence: Sequence) -> None:
        """Free slot and pages of `sequence`. Tokens that the host has read are kept, the others are forgotten."""
        assert sequence.slot is not None and sequence.in_flight == 0
        self.free_slots.append(sequence.slot)
        if sequence.adapter_slot is not None:
            self.adapters.release(sequence.adapter_slot)
        self.tables.release(sequence)
        self.images.release(sequence)
        sequence.slot = sequence.adapter_slot = None
        sequence.length = len(sequence.tokens)
        if sequence.beams:
            sequence.beams.forget()

    def sequences(self) -> Iterable[Sequence]:
        """Every live sequence, the running ones first."""
        return itertools.chain(self.running, self.waiting)
