"""I23, of adapters: each lies in the slot of the stacks that its sequences hold, exactly while they run, no dispatched
step loses one, and nobody is passed too often for want of a slot.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from tests.jaxengine.fake_device import digest_of

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine


def check_adapters(engine: FakeEngine) -> None:
    slots, stacks = engine.scheduler.batch.adapters, engine.device.stacks
    held = Counter(s.adapter_slot for s in engine.placed if s.adapter_slot is not None)
    assert slots.held == [held[slot] for slot in range(slots.slots)], f"I23: held {slots.held}, by sequences {held}"
    there = {digest: slot for slot, digest in stacks.items()}
    assert slots.slot_of == there, f"I23: adapters are said to lie in {slots.slot_of}, they lie in {there}"
    for sequence in engine.members:
        has = sequence.slot is not None and sequence.adapter is not None
        assert has == (sequence.adapter_slot is not None), f"I23: {sequence.request.id} has {sequence.adapter_slot}"
        assert not has or engine.device.adapter(sequence) == digest_of(sequence), "I23: another's adapter in its slot"
    for step in engine.steps:
        for slot, digest in step.adapters:
            assert stacks.get(slot) == digest, f"I23: slot {slot} was replaced under a dispatched step"


class PlacementCheck:
    """Records what lies in the stacks before a plan is made, then checks what the plan places there."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.before = dict(engine.device.stacks)
        self.replaced = 0

    def __call__(self, plan: Plan) -> None:
        slots, new = [slot for slot, _ in plan.placements], {slot: each.digest for slot, each in plan.placements}
        assert len(new) == len(slots), f"I23: two adapters for one slot in {slots}"
        assert new.keys() <= set(range(self.engine.scheduler.batch.adapters.slots)), f"I23: there are no slots {slots}"
        read = {slot for step in self.engine.steps for slot, _ in step.adapters}
        assert not read & new.keys(), f"I23: slots {slots} are placed anew while a dispatched step reads {read}"
        kept = {digest for slot, digest in self.before.items() if slot not in new}
        needed = {digest_of(sequence) for sequence in plan.admitted}
        assert {*new.values()} <= needed - kept, "I23: an adapter is placed that is there, or that nobody needs"
        after = self.before | new
        for sequence in [row.sequence for row in (*plan.encoder_rows, *plan.rows) if row.sequence.adapter]:
            slot = sequence.adapter_slot
            assert slot is not None and after.get(slot) == digest_of(sequence), (
                "I23: a row's adapter is not in its slot"
            )
        self.replaced = len(self.before.keys() & new.keys())


def waits_for_adapter(engine: FakeEngine, sequence: Sequence) -> bool:
    """Whether there is no slot for its adapter, or one that waits for such a slot has been passed often enough."""
    scheduler = engine.scheduler
    held = {digest_of(s) for s in (*scheduler.batch.running, *scheduler.batch.leaving) if s.adapter}

    def has_none(one: Sequence) -> bool:
        return one.adapter is not None and len(held) == scheduler.batch.adapters.slots and digest_of(one) not in held

    if has_none(sequence):
        engine.events["waits for an adapter"] += 1
        return True
    barred = any(s.passed_by >= scheduler.admission.most_passing for s in scheduler.queue.waiting if has_none(s))
    engine.events["barred"] += barred and sequence.adapter is not None
    return barred and sequence.adapter is not None


def count_passed(engine: FakeEngine, plan: Plan, waiting: list[Sequence]) -> None:
    """No request waits for a slot of the stacks while more than a few later ones with adapters are admitted."""
    for one in waiting:
        alike = (s for s in plan.admitted if s.adapter and s.first and s.request.caller == one.request.caller)
        engine.passed[one.request.id] += sum(s.order > one.order for s in alike)
        most = engine.scheduler.admission.most_passing
        assert engine.passed[one.request.id] <= most, f"I23: more than {most} have passed {one.request.id}"
