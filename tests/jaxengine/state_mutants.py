"""Bugs about states to plant in the scheduler, as those of `mutants`."""

from collections.abc import Callable

import pytest

from jaxengine.cache.page_tables import PageTables
from jaxengine.cache.snapshots import Snapshots
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.running_batch import RunningBatch
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.scheduler.state_saving import StateSaving

Patch = pytest.MonkeyPatch


def a_prefix_is_taken_for_cached_without_its_states(patch: Patch) -> None:
    patch.setattr(PageTables, "_longest_saved", lambda tables, sequence, count: count)
    patch.setattr(Snapshots, "use", lambda snapshots, key: snapshots.found.get(key, snapshots.slots[0]))


def states_are_not_copied_back(patch: Patch) -> None:
    join = RunningBatch.join

    def forgetful(batch: RunningBatch, sequence: Sequence, plan: Plan) -> None:
        join(batch, sequence, plan)
        plan.restores.clear()

    patch.setattr(RunningBatch, "join", forgetful)


def states_are_copied_before_they_are_computed(patch: Patch) -> None:
    add = StateSaving.add

    def early(saving: StateSaving, plan: Plan) -> None:
        add(saving, plan)
        plan.restores += [(save.sequence.slot, save.snapshot) for save in plan.saves if save.sequence.slot is not None]
        plan.saves = [save._replace(snapshot=save.sequence.slot or 0) for save in plan.saves]

    patch.setattr(StateSaving, "add", early)


def snapshots_outlive_a_failed_step(patch: Patch) -> None:
    patch.setattr(PageTables, "reset", lambda tables: tables.pool.reset())


def a_snapshot_is_lost_with_a_broken_sequence(patch: Patch) -> None:
    patch.setattr(Snapshots, "give_back", lambda snapshots, slot: None)


def states_that_came_out_broken_are_kept(patch: Patch) -> None:
    def complete(saving: StateSaving, plan: Plan) -> None:
        for sequence, at, slot in plan.saves:
            sequence.saves.remove(at)
            saving._snapshots.keep(slot, sequence.prefix_keys[at // saving.tables.pool.page_size - 1])

    patch.setattr(StateSaving, "complete", complete)


def a_slot_is_taken_without_forgetting_its_key(patch: Patch) -> None:
    def take(snapshots: Snapshots) -> int | None:
        return snapshots.blank.pop() if snapshots.blank else next(iter(snapshots.found.values()), None)

    patch.setattr(Snapshots, "take", take)


def guesses_count_as_in_the_states(patch: Patch) -> None:
    verified = Scheduler._verified

    def mistaken(scheduler: Scheduler, row: Row) -> int:
        scheduler.keeps_states = False
        return verified(scheduler, row)

    patch.setattr(Scheduler, "_verified", mistaken)


def pages_of_guesses_are_offered_that_will_be_written_again(patch: Patch) -> None:
    verified = Scheduler._verified
    patch.setattr(Scheduler, "_verified", lambda scheduler, row: verified(scheduler, row) + row.sequence.again)


def a_preempted_sequence_has_tokens_to_compute_again(patch: Patch) -> None:
    vacate = RunningBatch._vacate

    def remembering(batch: RunningBatch, sequence: Sequence) -> None:
        again = sequence.again
        vacate(batch, sequence)
        sequence.again = again

    patch.setattr(RunningBatch, "_vacate", remembering)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    a_prefix_is_taken_for_cached_without_its_states: "I7",
    states_are_not_copied_back: "I5",
    states_are_copied_before_they_are_computed: "I31",
    snapshots_outlive_a_failed_step: "I31",
    a_snapshot_is_lost_with_a_broken_sequence: "I31",
    states_that_came_out_broken_are_kept: "I31",
    a_slot_is_taken_without_forgetting_its_key: "I31",
    guesses_count_as_in_the_states: "I13",
    pages_of_guesses_are_offered_that_will_be_written_again: "I4",
    a_preempted_sequence_has_tokens_to_compute_again: "I3",
}
