"""Who computes what in the next step: one token budget, decodes first, then prefill chunks, first come first served.

Between callers (API keys) waiting requests take turns, see `FairQueue`.

The scheduler plans one step ahead of the device: while step n computes, it plans n+1 assuming that no running request
stops. So two rules keep pages safe. A page is released only when no dispatched step holds a row of its sequence
(`in_flight` is zero), and a sequence is preempted only when nothing at all is in flight: `plan` then asks the engine to
drain first. Preemption is by recompute, newest first, so the oldest request always advances.

The scheduler never sees an array and never blocks; time comes from the caller.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable

from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import FinishReason, Sequence, Table
from jaxengine.scheduler.fair_queue import FairQueue


class Scheduler:
    """Waiting and running sequences over one page pool.

    Args:
        tables: their pages, and the tokens that a step may compute.
        slots: rows a step can hold, and so requests that can run at once.
        rope_switch_length: a text that grows beyond so many tokens is computed anew, once; 0 = never.
    """

    def __init__(self, tables: PageTables, slots: int, *, rope_switch_length: int = 0) -> None:
        self.tables = tables
        self.token_budget = tables.token_budget
        if self.token_budget < slots:
            raise ValueError(f"a step of {self.token_budget} tokens cannot hold {slots} decoding rows")
        self.slots = slots
        self.rope_switch_length = rope_switch_length
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

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    # --- planning -----------------------------------------------------------------------------------------------

    def plan(self, only: Callable[[Sequence], bool] = lambda _: True) -> Plan:
        """The next step's rows, of the sequences `only` lets through. Marks them as dispatched.

        The running ones that `only` holds back are preempted, or the others might wait for their pages and slots for
        ever; so it holds nobody back while a step is in flight.
        """
        for sequence in [s for s in self.running if not only(s)]:
            self._preempt(sequence)
        plan = Plan()
        self._plan_running(plan)
        if not plan.drain:
            self._admit(plan, only)
            self._fill(plan)
        for row in plan.rows:
            sequence = row.sequence
            sequence.computed += row.count
            sequence.length += row.samples
            sequence.in_flight += 1
            self.fair_queue.charge(sequence.request.caller, row.samples)
        return plan

    def _plan_running(self, plan: Plan) -> None:
        """A row for each running sequence with something to compute: decodes first, then unfinished prefills."""
        for sequence in [
            s for s in self.running if s.rope_length <= self.rope_switch_length < s.length and not s.exhausted
        ]:
            if self._busy():
                plan.drain = True
                return
            sequence.rope_length = sequence.length
            self._preempt(sequence)
        for sequence in [s for s in self.running if s.length > s.page_capacity and not s.exhausted]:
            if sequence.slot is not None and not self._grow(sequence, plan):
                return
        prefilling = []
        for sequence in self.running:
            if sequence.computed < sequence.length - 1:
                prefilling.append(sequence)
            elif not sequence.exhausted:
                plan.add(Row(sequence, sequence.computed, 1, True))
        for sequence in prefilling:
            self._chunk(sequence, plan)

    def _grow(self, sequence: Sequence, plan: Plan) -> bool:
        """Give `sequence` pages for its next step, preempting the newest if need be; False asks to drain."""
        count = self.tables.lacking(sequence)
        while count > self.pool.available:
            if self._busy():
                plan.drain = True
                return False
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return True
        if count:
            self.tables.grow(sequence, count)
        return True

    def _busy(self) -> bool:
        """Whether a dispatched step has not been completed, so that nothing may be preempted."""
        return bool(self.leaving) or any(s.in_flight for s in self.running)

    def _chunk(self, sequence: Sequence, plan: Plan) -> None:
        """As much of the remaining prefill as half of the free budget holds: a long prompt must not stop short ones."""
        count = min(sequence.length - sequence.computed, (self.token_budget - plan.tokens + 1) // 2)
        if count > 0:
            samples = sequence.computed + count == sequence.length
            plan.add(Row(sequence, sequence.computed, count, samples))

    def _fill(self, plan: Plan) -> None:
        """What nobody else wanted goes to the prefills of the step, first come first served."""
        for row in plan.rows:
            if not row.samples:
                left = row.sequence.length - row.start - row.count
                more = min(self.token_budget - plan.tokens, left)
                row.count += more
                row.samples = more == left
                plan.tokens += more

    def _admit(self, plan: Plan, only: Callable[[Sequence], bool]) -> None:
        """Move waiting sequences to running, strictly in turn, while slots, budget and pages last.

        Except that one whose prefix is just being computed lets others pass until it can be shared: of several that
        come together with one prompt the first reads it. Each such follower has a claim to a slot: those that pass it
        leave it one, and no more are looked at than there are.
        """
        if not self.waiting or not self.free_slots:
            return
        reserved = sum(map(self.tables.reserve, self.running))
        reading = [s for s in self.running if s.offered_pages < len(s.keys)]
        for sequence in self.fair_queue.in_order([s for s in self.waiting if only(s)]):
            if len(self.free_slots) <= len(plan.waiting_for_prefix) or plan.tokens >= self.token_budget:
                return
            if not self._reads(sequence, plan):
                return
            if any(self.tables.awaits(sequence, other) for other in reading):
                plan.waiting_for_prefix.append(sequence)
                continue
            room = self.pool.available - reserved
            if self.tables.least(sequence) > room:
                return
            hit = self.tables.cached(sequence)
            if self.tables.needs(sequence, hit) > room:
                return
            self.waiting.remove(sequence)
            self._start(sequence, hit)
            reserved += self.tables.reserve(sequence)
            reading.append(sequence)
            plan.admitted.append(sequence)
            if sequence.encoder_input:
                plan.encoder_rows.append(Row(sequence, 0, len(sequence.encoder_input), False, of_encoder=True))
            self._chunk(sequence, plan)

    def _reads(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether the encoder, which has a budget like the decoder's, can read its source in this step.

        A source cannot be cut, so one alone may be any length.
        """
        return not plan.encoder_rows or plan.encoder_tokens + len(sequence.encoder_input) <= self.token_budget

    def _start(self, sequence: Sequence, hit: list[Table]) -> None:
        self.tables.start(sequence, hit)
        sequence.slot = self.free_slots.pop()
        if sequence.preemptions == 0:
            sequence.cached_tokens = sequence.computed
            self.fair_queue.charge(sequence.request.caller, len(sequence.request.prompt) - sequence.computed)
        bisect.insort(self.running, sequence, key=lambda s: s.order)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.preemptions += 1
        self.running.remove(sequence)
        self._vacate(sequence)
        self._queue(sequence)

    # --- completing ---------------------------------------------------------------------------------------------

    def complete(self, plan: Plan) -> None:
        """Step `plan` has run: its rows are no longer in flight, and their full pages can be found by others.

        The caller has appended the sampled tokens to their sequences and finished those that stopped.
        """
        for row in plan.rows:
            row.sequence.in_flight -= 1
            self.tables.offer(row.sequence, row.start + row.count)
            if self.tables.windowed:
                self.tables.give_back(row.sequence, row.start + row.count)
        for sequence in [s for s in self.leaving if s.in_flight == 0]:
            self.leaving.remove(sequence)
            self._vacate(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End `sequence`, wherever it is; its pages go as soon as no dispatched step can write them.

        The first reason counts. Say ERROR of every row that is not finite, even of a sequence that has ended: a
        cancelled one's last step may yet fill a page, which nobody should find.
        """
        if reason is FinishReason.ERROR:
            sequence.nonfinite = True
            self.tables.forget(sequence)
        if sequence.finish is not FinishReason.NOT_FINISHED:
            return
        sequence.finish = reason
        if sequence.slot is None:
            self.waiting.remove(sequence)
        elif sequence.in_flight:
            self.running.remove(sequence)
            self.leaving.append(sequence)
        else:
            self.running.remove(sequence)
            self._vacate(sequence)

    def reset(self) -> None:
        """The cache's content is lost: everything alive goes back to waiting, its tokens intact."""
        for sequence in (*self.running, *self.leaving):
            sequence.in_flight = 0
            self._vacate(sequence)
        for sequence in self.running:
            sequence.preemptions += 1  # what it finds in the cache from now on may be its own work
            self._queue(sequence)
        self.running, self.leaving = [], []
        self.pool.reset()

    def _vacate(self, sequence: Sequence) -> None:
        """Give back slot and pages; what was computed is forgotten, what was sampled and read is kept."""
        assert sequence.slot is not None and sequence.in_flight == 0
        self.free_slots.append(sequence.slot)
        self.tables.release(sequence)
        sequence.slot = None
        sequence.length = len(sequence.tokens)

    def sequences(self) -> Iterable[Sequence]:
        """Everything alive, running first."""
        return itertools.chain(self.running, self.waiting)
