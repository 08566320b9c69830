"""Bugs about adapters to plant in the scheduler, as those of `mutants`."""

from collections.abc import Callable, Iterator

import pytest

from jaxengine.cache import page_tables as module
from jaxengine.request.event import FinishReason
from jaxengine.request.sequence import Sequence
from jaxengine.rpc.page_keys import root_key
from jaxengine.scheduler.adapter_slots import AdapterSlots
from jaxengine.scheduler.scheduler import Scheduler

Patch = pytest.MonkeyPatch


def the_adapter_is_not_in_the_key(patch: Patch) -> None:
    patch.setattr(module, "root_key", lambda model, salt, adapter: root_key(model, salt))


def a_slot_of_the_stacks_is_given_away_while_it_is_held(patch: Patch) -> None:
    patch.setattr(AdapterSlots, "has_room", lambda slots, adapter: True)
    patch.setattr(AdapterSlots, "_free_slot", lambda slots: next(_given_away(slots)))


def _given_away(slots: AdapterSlots) -> Iterator[int]:
    yield from set(range(slots.slots)) - {*slots.slot_of.values()}
    yield slots.slot_of.pop(next(iter(slots.slot_of)))


def an_adapter_is_not_placed(patch: Patch) -> None:
    take = AdapterSlots.take
    patch.setattr(AdapterSlots, "take", lambda slots, adapter: (take(slots, adapter)[0], False))


def an_adapter_is_never_released(patch: Patch) -> None:
    patch.setattr(AdapterSlots, "release", lambda slots, slot: None)


def an_adapter_is_released_while_a_step_reads_it(patch: Patch) -> None:
    finish = Scheduler.finish

    def early(scheduler: Scheduler, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.adapter_slot is not None:
            scheduler.batch.adapters.release(sequence.adapter_slot)
            sequence.adapter_slot = None
        finish(scheduler, sequence, reason)

    patch.setattr(Scheduler, "finish", early)


def a_preempted_sequence_keeps_its_adapter(patch: Patch) -> None:
    preempt = Scheduler._preempt

    def keep(scheduler: Scheduler, sequence: Sequence) -> None:
        slot, sequence.adapter_slot = sequence.adapter_slot, None
        preempt(scheduler, sequence)
        sequence.adapter_slot = slot

    patch.setattr(Scheduler, "_preempt", keep)


def adapters_outlive_a_failed_step(patch: Patch) -> None:
    reset = Scheduler.reset

    def keep(scheduler: Scheduler) -> None:
        slot_of = scheduler.batch.adapters.slot_of
        reset(scheduler)
        scheduler.batch.adapters.slot_of = slot_of

    patch.setattr(Scheduler, "reset", keep)


def one_that_waits_for_a_slot_of_the_stacks_is_passed_for_ever(patch: Patch) -> None:
    patch.setattr(Sequence, "passed_by", property(lambda _: 0, lambda _, value: None), raising=False)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    the_adapter_is_not_in_the_key: "I5",
    a_slot_of_the_stacks_is_given_away_while_it_is_held: "I23",
    an_adapter_is_not_placed: "I23",
    an_adapter_is_never_released: "I23",
    an_adapter_is_released_while_a_step_reads_it: "I23",
    a_preempted_sequence_keeps_its_adapter: "I23",
    adapters_outlive_a_failed_step: "I23",
    one_that_waits_for_a_slot_of_the_stacks_is_passed_for_ever: "I23",
}
