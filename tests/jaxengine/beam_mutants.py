"""Bugs about beam searches to plant in the scheduler, the page tables and what the device is told, as those of
`mutants`.
"""

from collections.abc import Callable, Iterable

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import Fork, PageTables
from jaxengine.executor.page_table_mirror import PageTableMirror
from jaxengine.request.beams import Beams
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.scheduler import Scheduler

Patch = pytest.MonkeyPatch
Moves = Iterable[tuple[int, int]]


# --- a fork -------------------------------------------------------------------------------------------------------


def a_child_holds_none_of_the_pages_it_shares(patch: Patch) -> None:
    _in_forks(patch, lambda patch: patch.setattr(PagePool, "hold", lambda pool, pages: None))


def a_child_gives_none_of_its_pages_back(patch: Patch) -> None:
    _in_forks(patch, lambda patch: patch.setattr(PagePool, "release", lambda pool, pages: None))


def _in_forks(patch: Patch, plant: Callable[[Patch], None]) -> None:
    fork = PageTables.fork

    def mistaken(tables: PageTables, parent: Sequence, child: Sequence) -> Fork:
        with pytest.MonkeyPatch.context() as inner:
            plant(inner)
            return fork(tables, parent, child)

    patch.setattr(PageTables, "fork", mistaken)


def a_child_writes_on_in_the_page_of_its_parent(patch: Patch) -> None:
    fork = PageTables.fork

    def all_shared(tables: PageTables, parent: Sequence, child: Sequence) -> Fork:
        made = fork(tables, parent, child)
        for old, new in zip(child.tables, parent.tables, strict=True):
            tables.pool.release(old.held)
            old.pages, old.released = [*new.pages], new.released
            tables.pool.hold(old.held)
        child.page_capacity = parent.page_capacity
        return made._replace(kept=0, copies=[])

    patch.setattr(PageTables, "fork", all_shared)


def a_page_that_is_not_full_is_not_copied(patch: Patch) -> None:
    _forks(patch, lambda made: made._replace(copies=[]))


def only_the_first_table_s_page_is_copied(patch: Patch) -> None:
    _forks(patch, lambda made: made._replace(copies=made.copies[:1]))


def the_parent_becomes_a_copy_of_the_child(patch: Patch) -> None:
    _forks(patch, lambda made: made._replace(copies=[(target, source) for source, target in made.copies]))


def the_device_keeps_one_entry_too_many(patch: Patch) -> None:
    _forks(patch, lambda made: made._replace(kept=made.kept + 1))


def _forks(patch: Patch, change: Callable[[Fork], Fork]) -> None:
    fork = PageTables.fork
    patch.setattr(PageTables, "fork", lambda tables, parent, child: change(fork(tables, parent, child)))


def the_device_keeps_all_entries(patch: Patch) -> None:
    patch.setattr(PageTableMirror, "rewind", lambda mirror, slot, kept: None)


def a_child_keeps_its_place_before_the_window(patch: Patch) -> None:
    fork = PageTables.fork

    def keep(tables: PageTables, parent: Sequence, child: Sequence) -> Fork:
        released = [table.released for table in child.tables]
        made = fork(tables, parent, child)
        for table, own in zip(child.tables, released, strict=True):
            table.released = own
        return made

    patch.setattr(PageTables, "fork", keep)


def a_child_keeps_its_own_prefix_keys(patch: Patch) -> None:
    become = Sequence.become

    def keep(sequence: Sequence, parent: Sequence) -> None:
        own = sequence.prefix_keys
        become(sequence, parent)
        sequence.prefix_keys = own

    patch.setattr(Sequence, "become", keep)


def a_child_shares_its_tokens_with_its_parent(patch: Patch) -> None:
    become = Sequence.become

    def share(sequence: Sequence, parent: Sequence) -> None:
        become(sequence, parent)
        sequence.tokens = parent.tokens

    patch.setattr(Sequence, "become", share)


# --- growing ------------------------------------------------------------------------------------------------------


def children_are_copied_from_parents_that_have_grown(patch: Patch) -> None:
    def grow(scheduler: Scheduler, first: Sequence, moves: Moves) -> list[Fork]:
        assert first.beams is not None
        for member, branch in zip(first.members, first.beams.branches, strict=True):
            if member.tokens is first.tokens or not member.asleep:
                member.tokens.append(branch.tokens[-1].id)
                member.length += 1
        forks = []
        for parent, child in moves:
            forks.append(scheduler.tables.fork(first.members[parent], first.members[child]))
            first.members[child].become(first.members[parent])
            if len(first.beams.branches[child].tokens) == 1:
                scheduler.batch.running.append(first.members[child])
        return forks

    patch.setattr(Scheduler, "grow_beams", grow)


def nobody_wakes(patch: Patch) -> None:
    grow = Scheduler.grow_beams

    def only_the_first(scheduler: Scheduler, first: Sequence, moves: Moves) -> list[Fork]:
        running = [*scheduler.batch.running]
        forks = grow(scheduler, first, moves)
        scheduler.batch.running = running
        return forks

    patch.setattr(Scheduler, "grow_beams", only_the_first)


def the_asleep_are_given_rows(patch: Patch) -> None:
    patch.setattr(Sequence, "asleep", property(lambda sequence: False))


def a_step_is_planned_before_beams_have_grown(patch: Patch) -> None:
    needs = Scheduler.needs_tokens
    patch.setattr(Scheduler, "needs_tokens", lambda scheduler, plan: plan.verifies and needs(scheduler, plan))


def what_a_beam_has_sampled_counts_as_its_token(patch: Patch) -> None:
    complete = Scheduler.complete

    def counted(scheduler: Scheduler, plan: Plan) -> None:
        complete(scheduler, plan)
        for row in [row for row in plan.rows if row.sequence.beams and row.sequence.slot is not None]:
            row.sequence.length += row.samples

    patch.setattr(Scheduler, "complete", counted)


# --- coming and going ---------------------------------------------------------------------------------------------


def a_beam_that_waits_is_said_to_need_no_pages(patch: Patch) -> None:
    patch.setattr(PageTables, "need_of_beam", lambda tables, beam: 0)


def a_beam_has_no_page_of_the_encoder_input(patch: Patch) -> None:
    beside = PageTables._start_beside

    def alone(tables: PageTables, first: Sequence, beam: Sequence) -> None:
        beside(tables, first, beam)
        count = tables.pool.pages_for(len(beam.encoder_input))
        for table in beam.tables:
            tables.pool.release(table.pages[:count])
            table.pages[:count] = tables.pool.allocate(count)

    patch.setattr(PageTables, "_start_beside", alone)


def one_that_is_asleep_has_no_page(patch: Patch) -> None:
    beside = PageTables._start_beside

    def bare(tables: PageTables, first: Sequence, beam: Sequence) -> None:
        beside(tables, first, beam)
        for table in beam.tables if beam.asleep else ():
            tables.pool.release([table.pages.pop()])

    patch.setattr(PageTables, "_start_beside", bare)


def one_beam_is_preempted_without_the_others(patch: Patch) -> None:
    def preempt(scheduler: Scheduler, sequence: Sequence) -> None:
        scheduler.preemptions += 1
        sequence.members[0].preemptions += 1
        scheduler.batch.leave(sequence)
        scheduler.queue.add(sequence)

    patch.setattr(Scheduler, "_preempt", preempt)


def each_beam_of_a_preempted_search_waits_by_itself(patch: Patch) -> None:
    preempt = Scheduler._preempt

    def all_queued(scheduler: Scheduler, sequence: Sequence) -> None:
        preempt(scheduler, sequence)
        for beam in sequence.members[1:]:
            scheduler.queue.add(beam)

    patch.setattr(Scheduler, "_preempt", all_queued)


def what_beams_have_noted_outlives_their_preemption(patch: Patch) -> None:
    patch.setattr(Beams, "forget", lambda beams: None)


def a_beam_ends_without_the_others(patch: Patch) -> None:
    patch.setattr(Scheduler, "finish", lambda scheduler, sequence, reason: scheduler._finish(sequence, reason))


def the_asleep_outlive_their_search(patch: Patch) -> None:
    finish = Scheduler._finish

    def awake(scheduler: Scheduler, sequence: Sequence, reason: FinishReason) -> None:
        if not sequence.asleep:
            finish(scheduler, sequence, reason)

    patch.setattr(Scheduler, "_finish", awake)


def a_failed_step_leaves_the_asleep_their_slots(patch: Patch) -> None:
    reset = Scheduler.reset

    def forgetful(scheduler: Scheduler) -> None:
        asleep = [beam for each in scheduler.batch.running if each.first for beam in each.members if beam.asleep]
        slots = [beam.slot for beam in asleep]
        reset(scheduler)
        for beam, slot in zip(asleep, slots, strict=True):
            beam.slot = slot

    patch.setattr(Scheduler, "reset", forgetful)


def a_failed_step_queues_each_beam(patch: Patch) -> None:
    reset = Scheduler.reset

    def each_queued(scheduler: Scheduler) -> None:
        others = [each for each in scheduler.batch.running if not each.first]
        reset(scheduler)
        for beam in others:
            scheduler.queue.add(beam)

    patch.setattr(Scheduler, "reset", each_queued)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    a_child_holds_none_of_the_pages_it_shares: "I2",
    a_child_gives_none_of_its_pages_back: "I2",
    a_child_writes_on_in_the_page_of_its_parent: "I27",
    a_page_that_is_not_full_is_not_copied: "I27",
    only_the_first_table_s_page_is_copied: "I27",
    the_parent_becomes_a_copy_of_the_child: "I8",
    the_device_keeps_one_entry_too_many: "I27",
    the_device_keeps_all_entries: "I27",
    a_child_keeps_its_place_before_the_window: "I2",
    a_child_keeps_its_own_prefix_keys: "I5",
    a_child_shares_its_tokens_with_its_parent: "I27",
    children_are_copied_from_parents_that_have_grown: "I27",
    nobody_wakes: "I2",
    the_asleep_are_given_rows: "I27",
    a_step_is_planned_before_beams_have_grown: "I27",
    what_a_beam_has_sampled_counts_as_its_token: "I26",
    a_beam_that_waits_is_said_to_need_no_pages: "pages asked for",
    a_beam_has_no_page_of_the_encoder_input: "I4",
    one_that_is_asleep_has_no_page: "I27",
    one_beam_is_preempted_without_the_others: "I11",
    each_beam_of_a_preempted_search_waits_by_itself: "I11",
    what_beams_have_noted_outlives_their_preemption: "I27",
    a_beam_ends_without_the_others: "I27",
    the_asleep_outlive_their_search: "I27",
    a_failed_step_leaves_the_asleep_their_slots: "I27",
    a_failed_step_queues_each_beam: "I11",
}
