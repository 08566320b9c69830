"""What the scheduler decides, one rule of its policy at a time."""

import operator
from functools import partial

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import AGING_SECONDS
from jaxengine.scheduler.scheduler import Scheduler
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.fake_model import EOS
from tests.jaxengine.invariants import check_idle, check_state


def engine(
    *, pages: int = 100, page_size: int = 4, slots: int = 4, token_budget: int = 64, prefix_cache: bool = True
) -> FakeEngine:
    return FakeEngine(
        pages=pages, page_size=page_size, slots=slots, token_budget=token_budget, prefix_cache=prefix_cache
    )


def rows(plan: Plan) -> list[tuple[int, int, int, bool]]:
    """(request, start, count, samples) of each row."""
    return [(r.sequence.request.id, r.start, r.count, r.samples) for r in plan.rows]


def serve(served: FakeEngine) -> Plan:
    """One step with nothing left in flight."""
    plan = served.dispatch()
    served.collect_all()
    check_state(served)
    return plan


def test_a_step_must_hold_one_token_of_every_slot() -> None:
    with pytest.raises(ValueError, match="a step of 3 tokens cannot hold 4 decoding rows"):
        Scheduler(PageTables(PagePool(10, 4), (0,), token_budget=3), slots=4)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_sampled_once() -> None:
    served = engine(token_budget=8)
    served.add([1] * 20)
    assert [rows(serve(served)) for _ in range(3)] == [[(0, 0, 8, False)], [(0, 8, 8, False)], [(0, 16, 4, True)]]


def test_decodes_come_before_prefill_chunks_in_a_step() -> None:
    served = engine(token_budget=8)
    served.add([1] * 4, ignore_eos=True)
    serve(served)
    served.add([2] * 20)
    assert rows(serve(served)) == [(0, 4, 1, True), (1, 0, 7, False)]
    assert rows(serve(served)) == [(0, 5, 1, True), (1, 7, 7, False)]


def test_a_short_prompt_behind_a_long_one_is_sampled_in_its_first_step() -> None:
    served = engine(token_budget=16, pages=200)
    served.add([1] * 240)
    serve(served)
    served.add([2] * 3)
    assert rows(serve(served)) == [(0, 16, 13, False), (1, 0, 3, True)]


def test_several_long_prompts_share_a_step_the_first_having_the_most() -> None:
    served = engine(token_budget=16, pages=200)
    for number in range(3):
        served.add([number] * 100)
    assert [count for _, _, count, _ in rows(serve(served))] == [10, 4, 2]


def test_nothing_is_kept_back_for_a_request_that_has_all_the_pages_it_can_need() -> None:
    served = engine(pages=3)
    served.add([1, 2], max_tokens=2, ignore_eos=True)
    assert [sequence.request.id for sequence in serve(served).admitted] == [0]
    served.add([1, 2], max_tokens=2)
    assert [sequence.request.id for sequence in serve(served).admitted] == [1]


def test_the_next_step_is_planned_before_the_last_token_is_read() -> None:
    served = engine()
    sequence = served.add([1, 2, 3], ignore_eos=True)
    served.dispatch()
    assert rows(served.dispatch()) == [(0, 3, 1, True)]
    assert len(sequence.tokens) == 3 and sequence.pending == 2


def test_no_step_is_planned_past_the_last_token_a_request_may_have() -> None:
    served = engine()
    served.add([1, 2, 3], max_tokens=1)
    served.dispatch()
    assert not served.dispatch().rows


def test_pages_of_a_finished_request_stay_until_its_dispatched_step_completes() -> None:
    served = engine()
    sequence = served.add([1, 2, 3], ignore_eos=True)
    served.dispatch()
    served.abort(sequence)
    assert served.pool.used == 1
    served.collect()
    assert served.pool.used == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_is_idempotent_and_the_first_reason_counts(steps: int) -> None:
    served = engine()
    sequence = served.add([1, 2, 3], ignore_eos=True)
    for _ in range(steps):
        served.dispatch()
    served.abort(sequence, FinishReason.CANCELLED)
    served.abort(sequence, FinishReason.DEADLINE)
    served.collect_all()
    served.abort(sequence, FinishReason.DEADLINE)
    assert sequence.finish is FinishReason.CANCELLED and sequence.tokens == [1, 2, 3]
    check_idle(served)


def test_a_full_pool_drains_then_preempts_the_newest() -> None:
    served = engine(pages=5)
    old, new = served.add([1] * 7, 9, ignore_eos=True), served.add([2] * 3, 9, ignore_eos=True)
    while not (plan := served.dispatch()).drain:
        assert new.slot is not None or not plan.rows
        if len(served.steps) > 1:
            served.collect()
    served.dispatch()
    assert (old.preemptions, new.preemptions) == (0, 1) and new in served.scheduler.queue.waiting
    served.serve_until_idle()
    check_idle(served)


def test_admission_keeps_a_page_back_for_each_running_request_to_grow() -> None:
    served = engine(pages=4)
    served.add([1] * 4, ignore_eos=True)
    waiting = served.add([2] * 8)
    serve(served)
    assert waiting.slot is None, "3 pages: 1 used, 2 needed, 1 kept back"


def test_a_request_that_fills_the_pool_exactly_is_served() -> None:
    served = engine(pages=4)
    sequence = served.add([1] * 8, max_tokens=5, ignore_eos=True)
    served.serve_until_idle()
    assert len(sequence.tokens) == 13  # the last is never fed: 12 positions in 3 pages
    assert not served.fits(8, 6)


def test_nobody_is_admitted_past_an_older_request_that_does_not_fit() -> None:
    served = engine(pages=6)
    served.add([1] * 12, ignore_eos=True)
    serve(served)
    served.add([2] * 16)
    small = served.add([3])
    serve(served)
    assert small.slot is None


def test_a_cached_prefix_is_not_walked_at_every_step_that_its_request_waits_for_pages() -> None:
    served = engine(pages=12)
    served.add([1] * 32)
    served.serve_until_idle()
    served.add([2] * 8, max_tokens=12, ignore_eos=True)
    serve(served)
    waiting = served.add([1] * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagePool, "find", None)
        for _ in range(5):
            serve(served)
    assert waiting.slot is None
    served.serve_until_idle()
    assert waiting.cached_tokens == 24  # two of its eight pages went to the other
    check_idle(served)


def test_priority_is_worth_a_bounded_wait() -> None:
    served = engine(slots=1)
    patient = served.add([1], priority=1)
    served.advance(AGING_SECONDS - 1)
    served.add([2])
    served.advance(2)
    served.add([3])
    assert [s.request.id for s in served.scheduler.queue.waiting] == [1, 0, 2]
    assert patient.order < served.sequences[2].order


def test_a_prompt_seen_before_is_read_from_the_cache_but_for_its_last_token() -> None:
    served = engine()
    prompt = [1, 2, 3, 4, 5, 6, 7, 1]
    served.add(prompt)
    served.serve_until_idle()
    again = served.add(prompt)
    assert rows(served.dispatch()) == [(1, 4, 4, True)]
    assert again.cached_tokens == 4


def test_of_requests_that_come_together_with_one_prompt_the_first_reads_it_and_others_pass() -> None:
    served = engine(token_budget=8)
    for _ in range(3):
        served.add([1] * 21, max_tokens=1)
    other = served.add([2] * 3, max_tokens=1)
    assert serve(served).admitted == [served.sequences[0], other]
    served.serve_until_idle()
    assert [s.cached_tokens for s in served.sequences] == [0, 20, 20, 0]
    check_idle(served)


def test_those_that_wait_to_share_are_looked_at_as_far_as_there_are_slots_for_them() -> None:
    served = engine(slots=4, token_budget=8)
    for _ in range(10):
        served.add([1] * 21, max_tokens=1)
    other = served.add([2] * 3, max_tokens=1)
    assert serve(served).admitted == served.sequences[:1]  # the slots left are claimed
    assert [len(s.prefix_keys) for s in served.sequences] == [5, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    served.serve_until_idle()
    assert [s.cached_tokens for s in served.sequences] == [0] + [20] * 9 + [0]
    assert other.finish is FinishReason.LENGTH


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    served = engine()
    first = served.add([1, 2, 3], max_tokens=10, ignore_eos=True)
    served.serve_until_idle()
    turn = served.add([*first.tokens, 5, 6])
    served.dispatch()
    assert turn.cached_tokens == 12


@pytest.mark.parametrize("options", [{"salt": b"other"}, {"prompt_logprobs": True}])
def test_no_prefix_is_read_under_another_salt_or_where_prompt_logprobs_are_wanted(options: dict[str, bytes]) -> None:
    served = engine()
    served.add([1] * 9)
    served.serve_until_idle()
    served.add([1] * 9, **options)  # type: ignore[arg-type]
    assert rows(served.dispatch()) == [(1, 0, 9, True)]


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    served = engine(prefix_cache=False)
    served.add([1] * 9)
    served.serve_until_idle()
    assert served.pool.cached == 0


def test_pages_that_a_cancelled_requests_nan_step_fills_are_not_offered() -> None:
    served = engine()
    sequence = served.add([1] * 8)
    served.device.poisoned.add(0)
    served.dispatch()
    served.abort(sequence)
    served.collect_all()
    assert sequence.finish is FinishReason.CANCELLED and served.pool.cached == 0


def test_a_failed_step_sends_everything_alive_back_in_order_with_its_tokens() -> None:
    served = engine()
    first, second = served.add([1] * 5, ignore_eos=True), served.add([2] * 5, ignore_eos=True)
    serve(served)
    late = served.add([3] * 5)
    served.dispatch()
    served.fail()
    check_state(served)
    assert served.scheduler.queue.waiting == [first, second, late]
    assert len(first.tokens) == len(second.tokens) == 6 and not served.pool.index
    served.serve_until_idle()
    check_idle(served)


def test_tokens_a_request_has_generated_are_not_reported_as_cached_prompt_after_a_failed_step() -> None:
    served = engine(page_size=1, slots=1)
    first = served.add([1, 2], max_tokens=6, ignore_eos=True)
    for _ in range(4):
        serve(served)
    twin = served.add([1, 2], max_tokens=6, ignore_eos=True, priority=-1)
    served.fail()
    served.serve_until_idle()
    assert twin.tokens == first.tokens and served.events["hits"] == 0
    assert first.cached_tokens == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_caller_pays_for_the_prompt_of_a_resumed_request_and_for_what_is_new(prefix_cache: bool) -> None:
    """The cache holds its prompt and what it was answered, of which the prompt alone counts."""
    served = engine(page_size=1, prefix_cache=prefix_cache)
    served.add([1, 2, 3], max_tokens=10, ignore_eos=True)
    served.serve_until_idle()
    resumed = served.add([1, 2, 3], max_tokens=10, ignore_eos=True, caller=1, resumed=6)
    counters = served.scheduler.queue.counters
    before = counters[1]
    served.dispatch()
    assert resumed.cached_tokens == (3 if prefix_cache else 0)
    assert counters[1] - before == 4 - resumed.cached_tokens
    served.serve_until_idle()
    assert counters[1] - before == 3 - resumed.cached_tokens + 4
    check_idle(served)


def test_only_the_chosen_requests_are_served_when_a_step_is_searched_for_its_culprit() -> None:
    served = engine()
    for _ in range(3):
        served.add([1, 2, 3])
    assert rows(served.dispatch(lambda s: s.request.id != 1)) == [(0, 0, 3, True), (2, 0, 3, True)]


def test_a_request_ends_at_eos_although_the_next_step_is_under_way() -> None:
    served = engine()
    sequence = served.add([1, 2, 3], max_tokens=200)
    served.serve_until_idle()
    assert sequence.finish is FinishReason.EOS and sequence.tokens[-1] == EOS
    assert served.events["rows of ended requests"] == 1
    check_idle(served)


def test_a_chosen_request_never_waits_for_the_pages_of_one_that_is_held_back() -> None:
    served = engine(pages=4)
    first, second = served.add([1] * 3, 9, ignore_eos=True), served.add([2] * 3, 6, ignore_eos=True)
    for _ in range(4):
        serve(served)
    served.fail()
    for chosen in (first, second, first):
        assert [row[0] for row in rows(served.dispatch(partial(operator.is_, chosen)))] == [chosen.request.id]
        served.collect_all()
        check_state(served)
    served.serve_until_idle()
    check_idle(served)


def test_a_text_that_outgrew_its_rope_while_it_was_held_back_is_computed_with_the_other() -> None:
    served = FakeEngine(pages=100, page_size=4, slots=4, token_budget=64, prefix_cache=False, rope_switch_length=6)
    sequence = served.add([1] * 5, max_tokens=6, ignore_eos=True)
    served.add([2])
    for _ in range(2):
        serve(served)
    assert len(sequence.tokens) == 7 and sequence.rope_length == 5
    serve_only(served, 1)
    served.serve_until_idle()
    check_idle(served)
    assert sequence.rope_length == 7


def serve_only(served: FakeEngine, chosen: int) -> None:
    """One step without the requests that are not `chosen`."""
    served.dispatch(lambda s: s.request.id == chosen)
    served.collect_all()
    check_state(served)
