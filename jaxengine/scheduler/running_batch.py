"""The sequences that have a slot: each holds pages, rows of images, and a place of the device's stacks for its adapter.

What a sequence holds is given back only when no dispatched step has a row of it (`in_flight` is zero), since that step
still reads and writes there.
"""

import bisect

from jaxengine.cache.page_tables import PageTables
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.adapter_slots import AdapterSlots
from jaxengine.scheduler.image_planner import ImagePlanner


class RunningBatch:
    """
    Args:
        tables, images: what sequences hold of them is given back here.
        slots, adapters: as of the `Scheduler`.
    """

    def __init__(self, tables: PageTables, images: ImagePlanner, slots: int, adapters: int) -> None:
        self.tables = tables
        self.images = images
        self.adapters = AdapterSlots(adapters)
        self.running: list[Sequence] = []  # sorted by order
        self.leaving: list[Sequence] = []  # finished, but a dispatched step still writes their pages
        self.free_slots = list(range(slots))[::-1]

    @property
    def step_in_flight(self) -> bool:
        """Whether a dispatched step has not been completed, so that nothing may be preempted."""
        return bool(self.leaving) or any(s.in_flight for s in self.running)

    def join(self, sequence: Sequence, plan: Plan) -> None:
        """Give `sequence` a slot, and one of the device's stacks for its adapter; it runs unless it is asleep."""
        sequence.slot = self.free_slots.pop()
        if sequence.adapter is not None:
            sequence.adapter_slot, missing = self.adapters.take(sequence.adapter)
            plan.placements += [(sequence.adapter_slot, sequence.adapter)] if missing else []
        if not sequence.asleep:
            self.run(sequence)
        if sequence.snapshot is not None:
            plan.restores.append((sequence.snapshot, sequence.slot))
        plan.admitted.append(sequence)

    def run(self, sequence: Sequence) -> None:
        """Steps may have rows of `sequence`, which has a slot, from now on."""
        bisect.insort(self.running, sequence, key=lambda s: s.order)

    def leave(self, sequence: Sequence) -> None:
        """No further step has a row of `sequence`. It gives back what it holds, at once or when its steps complete."""
        if not sequence.asleep:
            self.running.remove(sequence)
        if sequence.in_flight:
            self.leaving.append(sequence)
        else:
            self._vacate(sequence)

    def vacate_completed(self) -> None:
        """A step has completed: those that have left, and were in no other, give back what they hold."""
        for sequence in [s for s in self.leaving if s.in_flight == 0]:
            self.leaving.remove(sequence)
            self._vacate(sequence)

    def reset(self) -> list[Sequence]:
        """The content of the caches is lost, and no step is in flight. Returns those that ran: none does any more."""
        stopped = self.running
        for sequence in [member for each in (*self.running, *self.leaving) for member in each.members]:
            sequence.in_flight = 0
            if sequence.slot is not None:
                self._vacate(sequence)
        self.running, self.leaving = [], []
        self.tables.reset()
        self.adapters.reset()
        self.images.reset()
        return stopped

    def _vacate(self, sequence: Sequence) -> None:
        """Free slot and pages of `sequence`. Tokens that the host has read are kept, the others are forgotten."""
        assert sequence.slot is not None and sequence.in_flight == 0
        self.free_slots.append(sequence.slot)
        if sequence.adapter_slot is not None:
            self.adapters.release(sequence.adapter_slot)
        self.tables.release(sequence)
        self.images.release(sequence)
        sequence.slot = sequence.adapter_slot = None
        sequence.length, sequence.again = len(sequence.tokens), 0
        if sequence.beams:
            sequence.beams.forget()
