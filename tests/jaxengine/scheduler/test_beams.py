"""What the scheduler decides about beam searches, and that they find what a search without pages finds.

The searches of random walks are in `test_properties`, bugs about them in `test_mutations`.
"""

import random
from typing import Any

import pytest

from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.invariants import check_idle, check_state

PROMPT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]


def engine(**sizes: Any) -> FakeEngine:
    return FakeEngine(**{"pages": 100, "page_size": 4, "slots": 4, "token_budget": 64, **sizes})


def search(
    served: FakeEngine, prompt: list[int] = PROMPT, max_tokens: int = 12, width: int = 3, **how: Any
) -> Sequence:
    """One that goes on to the last token."""
    wanted = BeamSearch(width=width, early_stopping="never")
    return served.add(prompt, max_tokens, search=wanted, ignore_eos=True, **how)


def step(served: FakeEngine, times: int = 1) -> Plan:
    """Steps with nothing left in flight."""
    for _ in range(times):
        plan = served.dispatch()
        served.collect_all()
        check_state(served)
    return plan


def finish(served: FakeEngine) -> None:
    served.serve_until_idle()
    check_idle(served)


def test_the_prompt_is_read_once_and_then_there_is_a_row_for_each_beam() -> None:
    served = engine()
    first = search(served)
    assert [(row.sequence, row.start, row.count) for row in step(served).rows] == [(first, 0, 10)]
    assert [(row.sequence, row.start, row.count) for row in step(served).rows] == [(s, 10, 1) for s in first.members]
    finish(served)


def test_beams_share_all_pages_but_the_ones_they_write_on_in() -> None:
    served = engine()
    search(served, [1] * 41)
    step(served)
    assert served.pool.used == 10 + 3  # of 4 tokens each; the eleventh holds one token of the prompt
    assert served.events["copies"] == 2
    finish(served)


def test_beams_share_a_prompt_of_whole_pages_without_a_copy() -> None:
    served = engine()
    search(served, [1] * 40)
    step(served)
    assert served.pool.used == 10 + 2  # the first has none to write on in until its next step
    assert served.events["forks"] == 2 and served.events["copies"] == 0
    finish(served)


def test_a_search_waits_until_there_is_a_slot_for_every_beam_and_nobody_passes_it() -> None:
    served = engine()
    plain = [served.add([each], 2, ignore_eos=True) for each in (1, 2)]
    step(served)
    first, late = search(served), served.add([3], 2)
    assert step(served).admitted == [] and first.slot is late.slot is None
    assert [each.finish for each in plain] == [FinishReason.LENGTH] * 2
    assert step(served).admitted == [*first.members, late]
    finish(served)


def test_a_search_as_wide_as_there_are_slots_is_served_and_two_of_them_one_after_the_other() -> None:
    served = engine(pages=17)
    one, other = search(served, [1] * 4, 12, width=4), search(served, [2] * 4, 12, width=4)
    step(served, 5)
    assert one.slot is not None and other.slot is None
    finish(served)
    assert served.scheduler.preemptions == 0 and set(served.found) == {0, 1}


def test_of_two_searches_that_outgrow_the_pool_the_later_one_is_preempted_whole_and_finds_the_same() -> None:
    served = engine(pages=28, slots=6, page_size=1)
    early, late = search(served, [1], 9), search(served, [2], 9)
    for _ in range(9):
        if not late.preemptions:
            step(served)
    assert early.preemptions == 0 and all(beam.slot is None for beam in late.members)
    assert served.scheduler.preemptions == 1 and served.scheduler.queue.waiting == [late]
    finish(served)


def test_nothing_is_planned_while_beams_are_being_sampled_and_prompts_are_read_ahead() -> None:
    served = engine(token_budget=8)
    search(served, [1] * 20)
    for _ in range(3):
        served.dispatch()  # of 8, 8 and 4 tokens
    assert len(served.steps) == 3
    served.dispatch()
    assert len(served.steps) == 1
    finish(served)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_search_that_is_cancelled_leaves_nothing_behind(steps: int, in_flight: bool) -> None:
    served = engine()
    first = search(served)
    step(served, steps) if steps else None
    if in_flight:
        served.dispatch()
    served.abort(first)
    check_state(served)
    served.collect_all()
    assert all(beam.finish is FinishReason.CANCELLED for beam in first.members)
    check_idle(served)


def test_a_beam_that_is_not_finite_ends_its_search_and_none_of_the_beams_pages_are_offered() -> None:
    served = engine()
    first = search(served)
    step(served, 3)
    pages = {page for beam in first.members for page in beam.tables[0].pages}
    assert pages & served.pool.content.keys()
    served.device.poisoned.add(first.request.id)
    step(served)
    assert first.finish is FinishReason.ERROR and not pages & served.pool.content.keys()
    check_idle(served)


def test_a_search_goes_on_after_a_failed_step_with_the_beams_it_had() -> None:
    served = engine()
    first = search(served)
    step(served, 4)
    served.dispatch()
    served.fail()
    check_state(served)
    assert served.scheduler.queue.waiting == [first] and first.preemptions == 1
    assert {len(beam.tokens) for beam in first.members} == {len(PROMPT) + 4}
    assert len(step(served).rows) == 3
    finish(served)


def test_beams_that_are_computed_anew_wait_for_the_last_of_them() -> None:
    served = engine(token_budget=4, prefix_cache=False)
    first = search(served)
    step(served, 6)
    assert len(first.tokens) == len(PROMPT) + 4
    served.fail()
    done = []
    while len(first.tokens) == len(PROMPT) + 4 and len(done) < 50:
        step(served)
        done.append(sum(beam.computed == len(beam.tokens) for beam in first.members))
    assert {1, 2} <= {*done} and done[-1] == 0
    finish(served)


def test_pages_of_beams_are_found_by_others_and_those_of_others_by_beams() -> None:
    served = engine()
    other = served.add(PROMPT, 4, ignore_eos=True)
    served.serve_until_idle()
    first = search(served)
    step(served, 6)
    assert first.cached_tokens == 8
    turn = served.add([*first.members[-1].tokens, 1], 2)
    step(served)
    assert turn.cached_tokens == 16 - 4 and other.finish is FinishReason.LENGTH
    finish(served)


def test_beams_of_a_preempted_search_start_from_what_they_had_computed() -> None:
    served = engine()
    first = search(served)
    step(served, 8)
    step_without(served, first)
    plan = step(served)
    assert [row.start for row in plan.rows] == [16] * 3 and plan.tokens == 3 * 2
    finish(served)


def test_beams_have_no_drafts() -> None:
    served = engine(drafts=random.Random(0))
    first = search(served, max_tokens=8)
    served.add([1, 2, 3], 30, ignore_eos=True)
    met = 0
    while first.finish is FinishReason.NOT_FINISHED:
        plan = step(served)
        assert not any(row.draft for row in plan.rows if row.sequence.beams)
        met += plan.verifies and plan.grows_beams
    assert met
    finish(served)


def test_an_adapter_is_placed_once_for_all_beams() -> None:
    served = engine(adapter_slots=1)
    first = search(served, adapter="a")
    assert len(step(served).placements) == 1
    assert served.scheduler.batch.adapters.held == [3] and {beam.adapter_slot for beam in first.members} == {0}
    finish(served)


def step_without(served: FakeEngine, sequence: Sequence) -> None:
    """Preempt `sequence` and step without it."""
    served.dispatch(lambda each: each.members[0] is not sequence)
    served.collect_all()
    check_state(served)


def test_a_beam_that_starts_again_takes_no_page_that_another_is_about_to_start_from() -> None:
    """Behind a small window a beam that lost its prefix would need many times the pages that it was admitted with."""
    served = engine(page_size=1, windows=(12,))
    first = search(served, [1] * 36, 14, width=2)
    step(served, 8)
    step_without(served, first)
    found = [served.scheduler.tables.cached_prefix(beam)[0].held for beam in first.members]
    pool = served.pool
    elsewhere = pool.allocate(pool.available - 40)
    own = {*found[1]} - {*found[0]}
    for page in own:
        pool.reusable.move_to_end(page, last=False)  # the next to be taken
    assert own and not pool.blank
    assert [row.count for row in served.dispatch().rows] == [1, 1]
    served.collect_all()
    pool.release(elsewhere)
    finish(served)


def test_what_is_kept_back_for_a_request_is_kept_back_for_each_of_its_beams() -> None:
    served = engine(pages=15, page_size=1, slots=6, prefix_cache=False)
    first = search(served, [1, 2], 6, width=2)
    step(served, 2)
    served.fail()
    served.add([3, 4, 5, 6, 7], 2)
    assert step(served).admitted == first.members, "14 pages: 8 used, 5 needed, 2 kept back"
    finish(served)
