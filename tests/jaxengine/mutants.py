"""Bugs to plant in the page pool, the page tables or the scheduler: each replaces a method by one with a mistake."""

import operator
from collections.abc import Callable
from collections.abc import Sequence as Ids
from functools import partial

import pytest

from jaxengine.cache import page_tables as module
from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.rpc.page_keys import page_key, root_key
from jaxengine.scheduler.admission import Admission
from jaxengine.scheduler.prefill import Prefill
from jaxengine.scheduler.running_batch import RunningBatch
from jaxengine.scheduler.scheduler import Scheduler

Patch = pytest.MonkeyPatch


def one_reference_is_not_dropped(patch: Patch) -> None:
    release = PagePool.release
    patch.setattr(PagePool, "release", lambda pool, pages: release(pool, pages[1:]))


def a_page_is_freed_twice(patch: Patch) -> None:
    release = PagePool.release

    def twice(pool: PagePool, pages: Ids[int]) -> None:
        release(pool, pages)
        release(pool, pages[-1:])

    patch.setattr(PagePool, "release", twice)


def a_hit_page_stays_in_the_free_queue(patch: Patch) -> None:
    def hold(pool: PagePool, pages: Ids[int]) -> None:
        for page in pages:
            pool.references[page] += 1

    patch.setattr(PagePool, "hold", hold)


def a_reused_page_keeps_its_index_entry(patch: Patch) -> None:
    def take(pool: PagePool) -> int:
        page = pool.blank.pop() if pool.blank else pool.reusable.popitem(last=False)[0]
        pool.content.pop(page, None)
        pool.references[page] = 1
        return page

    patch.setattr(PagePool, "_take", take)


def the_index_outlives_a_failed_step(patch: Patch) -> None:
    reset = PagePool.reset

    def keep(pool: PagePool) -> None:
        index, content = getattr(pool, "index", {}), getattr(pool, "content", {})
        reset(pool)
        pool.index, pool.content = index, content
        pool.reusable.update(dict.fromkeys(content))
        pool.blank = [page for page in pool.blank if page not in content]

    patch.setattr(PagePool, "reset", keep)


def the_tail_page_comes_one_token_late(patch: Patch) -> None:
    patch.setattr(PagePool, "pages_for", lambda pool, tokens: max(1, -(-(tokens - 1) // pool.page_size)))


def a_window_is_a_token_too_narrow(patch: Patch) -> None:
    passed = PageTables._pages_behind
    patch.setattr(PageTables, "_pages_behind", lambda tables, window, position: passed(tables, window, position + 1))


def a_window_s_pages_go_while_a_step_reads_them(patch: Patch) -> None:
    release = PageTables.release_behind_windows

    def early(tables: PageTables, sequence: Sequence, _: int) -> None:
        release(tables, sequence, sequence.computed)

    patch.setattr(PageTables, "release_behind_windows", early)


def nothing_behind_a_window_is_given_back(patch: Patch) -> None:
    patch.setattr(PageTables, "release_behind_windows", lambda tables, sequence, position: None)


def every_table_has_the_widest_window(patch: Patch) -> None:
    passed = PageTables._pages_behind

    def widest(tables: PageTables, window: int, position: int) -> int:
        return passed(tables, max(tables.windows), position)

    patch.setattr(PageTables, "_pages_behind", widest)


def a_prefix_is_cached_if_its_first_table_has_it(patch: Patch) -> None:
    has = PageTables._is_cached
    patch.setattr(PageTables, "_is_cached", lambda tables, _, sequence, i: has(tables, 0, sequence, i))


def tables_share_their_pages(patch: Patch) -> None:
    def grow(tables: PageTables, sequence: Sequence, count: int) -> None:
        pages = tables.pool.allocate(count // len(sequence.tables))
        for table in sequence.tables:
            table.pages += pages

    patch.setattr(PageTables, "grow", grow)


def a_page_is_found_by_any_table(patch: Patch) -> None:
    commit = PagePool.commit

    def for_all(pool: PagePool, page: int, table: int, key: bytes, ids: Ids[int]) -> None:
        for number in (0, 1, 2):
            commit(pool, page, number, key, ids)

    patch.setattr(PagePool, "commit", for_all)


def an_encoder_input_shares_a_page_with_the_tokens_behind_it(patch: Patch) -> None:
    def together(tables: PageTables, sequence: Sequence, length: int) -> int:
        return tables.pool.pages_for(len(sequence.encoder_input) + length) - len(sequence.tables[0].pages)

    patch.setattr(PageTables, "_missing", together)


def the_salt_is_not_in_the_key(patch: Patch) -> None:
    patch.setattr(module, "root_key", lambda model, salt, adapter: root_key(model, b"", adapter))


def the_key_forgets_what_came_before(patch: Patch) -> None:
    patch.setattr(module, "page_key", lambda parent, ids, seen: page_key(b"", ids, seen))


def a_hit_leaves_no_token_to_compute(patch: Patch) -> None:
    longest = PageTables._longest_cached
    patch.setattr(
        PageTables, "_longest_cached", lambda tables, sequence, _: longest(tables, sequence, len(sequence.prefix_keys))
    )


def the_last_cached_page_is_missed(patch: Patch) -> None:
    longest = PageTables._longest_cached
    patch.setattr(
        PageTables, "_longest_cached", lambda tables, sequence, count: max(0, longest(tables, sequence, count) - 1)
    )


def pages_are_offered_before_they_are_written(patch: Patch) -> None:
    offer = PageTables.offer
    patch.setattr(
        PageTables, "offer", lambda tables, sequence, _: offer(tables, sequence, len(sequence.tables[0].pages) * 99)
    )


def a_page_of_unknown_tokens_is_offered(patch: Patch) -> None:
    offer = PageTables.offer

    def eager(tables: PageTables, sequence: Sequence, written: int) -> None:
        offer(tables, sequence, written)
        rest, pages = tables._page_ids(sequence, len(sequence.prefix_keys)), sequence.tables[0].pages
        if sequence.pending and len(pages) > len(sequence.prefix_keys):
            tables.pool.commit(pages[len(sequence.prefix_keys)], 0, page_key(b"", rest), rest)

    patch.setattr(PageTables, "offer", eager)


def the_pages_of_a_broken_row_are_offered(patch: Patch) -> None:
    patch.setattr(Sequence, "nonfinite", property(lambda _: False, lambda _, value: None), raising=False)


def pages_are_freed_while_a_step_writes_them(patch: Patch) -> None:
    def finish(scheduler: Scheduler, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.finish is FinishReason.NOT_FINISHED:
            sequence.finish = reason
            (scheduler.queue.waiting if sequence.slot is None else scheduler.batch.running).remove(sequence)
            free(scheduler, sequence)

    patch.setattr(Scheduler, "finish", finish)


def a_sequence_is_preempted_while_in_flight(patch: Patch) -> None:
    def grow(scheduler: Scheduler, sequence: Sequence, plan: Plan) -> bool:
        tables = scheduler.tables
        count = tables.need(sequence).next_step
        while count > scheduler.pool.available:
            victim = scheduler.batch.running[-1]
            victim.in_flight = 0
            scheduler._preempt(victim)
            if victim is sequence:
                return True
        tables.grow(sequence, count)
        return True

    patch.setattr(Scheduler, "_grow", grow)


def the_oldest_is_preempted(patch: Patch) -> None:
    preempt = Scheduler._preempt
    patch.setattr(Scheduler, "_preempt", lambda scheduler, _: preempt(scheduler, scheduler.batch.running[0]))


def the_preempted_go_to_the_end_of_the_queue(patch: Patch) -> None:
    patch.setattr(Scheduler, "add", lambda scheduler, sequence: scheduler.queue.waiting.append(sequence))


def a_preempted_sequence_keeps_its_place_in_the_prefill(patch: Patch) -> None:
    vacate = RunningBatch._vacate

    def keep(batch: RunningBatch, sequence: Sequence) -> None:
        computed = sequence.computed
        vacate(batch, sequence)
        sequence.computed = computed

    patch.setattr(RunningBatch, "_vacate", keep)


def more_run_than_there_are_slots(patch: Patch) -> None:
    init = Scheduler.__init__

    def roomy(scheduler: Scheduler, *args: object, **kwargs: object) -> None:
        init(scheduler, *args, **kwargs)  # type: ignore[arg-type]
        scheduler.batch.free_slots.append(scheduler.slots)

    patch.setattr(Scheduler, "__init__", roomy)


def a_chunk_ignores_the_budget(patch: Patch) -> None:
    def chunk(prefill: Prefill, sequence: Sequence, plan: Plan) -> None:
        plan.rows.append(Row(sequence, sequence.computed, sequence.length - sequence.computed, True))

    patch.setattr(Prefill, "add_chunk", chunk)


def prefills_take_the_budget_before_decodes(patch: Patch) -> None:
    def plan_running(scheduler: Scheduler, plan: Plan) -> None:
        for sequence in [s for s in scheduler.batch.running if not s.exhausted]:
            if sequence.slot is not None and not scheduler._grow(sequence, plan):
                plan.rows = []
                return
        active = [s for s in scheduler.batch.running if not s.exhausted]
        for sequence in sorted(active, key=lambda s: s.computed - s.length):
            scheduler.prefill.add_chunk(sequence, plan)

    patch.setattr(Scheduler, "_plan_running", plan_running)


def the_queue_is_overtaken_by_what_fits(patch: Patch) -> None:
    admit = Admission.admit

    def each(admission: Admission, plan: Plan, only: Callable[[Sequence], bool]) -> None:
        for sequence in filter(only, list(admission.queue.waiting)):
            admit(admission, plan, partial(operator.is_, sequence))

    patch.setattr(Admission, "admit", each)


def admission_takes_a_page_too_many(patch: Patch) -> None:
    need = PageTables.need
    patch.setattr(PageTables, "need", lambda tables, sequence: need(tables, sequence)._replace(reserve=-1))


def free(scheduler: Scheduler, sequence: Sequence) -> None:
    """Vacate without the guard, as the buggy code would."""
    if sequence.slot is not None:
        sequence.in_flight = 0
        scheduler.batch._vacate(sequence)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    one_reference_is_not_dropped: "I2",
    a_page_is_freed_twice: "I2",
    a_hit_page_stays_in_the_free_queue: "I1",
    a_reused_page_keeps_its_index_entry: "I6",
    the_index_outlives_a_failed_step: "I5",
    the_tail_page_comes_one_token_late: "I11",
    an_encoder_input_shares_a_page_with_the_tokens_behind_it: "I11",
    a_window_is_a_token_too_narrow: "I9",
    a_window_s_pages_go_while_a_step_reads_them: "I9",
    nothing_behind_a_window_is_given_back: "I3",
    every_table_has_the_widest_window: "I3",
    a_prefix_is_cached_if_its_first_table_has_it: "(1, b",  # what is taken as cached is not there
    tables_share_their_pages: "I2",
    a_page_is_found_by_any_table: "I6",
    the_salt_is_not_in_the_key: "I5",
    the_key_forgets_what_came_before: "I5",
    a_hit_leaves_no_token_to_compute: "I7",
    the_last_cached_page_is_missed: "I7",
    pages_are_offered_before_they_are_written: "I5",
    a_page_of_unknown_tokens_is_offered: "I5",
    the_pages_of_a_broken_row_are_offered: "I5",
    pages_are_freed_while_a_step_writes_them: "I9",
    a_sequence_is_preempted_while_in_flight: "I9",
    the_oldest_is_preempted: "I16",
    the_preempted_go_to_the_end_of_the_queue: "I17",
    a_preempted_sequence_keeps_its_place_in_the_prefill: "I3",
    more_run_than_there_are_slots: "I11",
    a_chunk_ignores_the_budget: "I11",
    prefills_take_the_budget_before_decodes: "I17",
    the_queue_is_overtaken_by_what_fits: "I17",
    admission_takes_a_page_too_many: "pages asked for",
}
