"""Waiting requests are served by the tokens their callers have had, so a caller that floods the queue delays itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.request.sequence import Sequence
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.invariants import check_idle

FLOODER, VISITOR = 0, 1
SLOTS, LONGEST = 4, 24


def engine(slots: int = SLOTS) -> FakeEngine:
    return FakeEngine(pages=400, page_size=4, slots=slots, token_budget=64, prefix_cache=False)


def waiting(served: FakeEngine) -> set[int]:
    return {sequence.request.caller for sequence in served.scheduler.queue.waiting}


lengths = st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST))


@settings(max_examples=60, deadline=None)
@given(flood=st.lists(lengths, min_size=40, max_size=80), visits=st.lists(lengths, min_size=10, max_size=20))
def test_while_both_wait_what_two_callers_got_differs_by_a_batch_at_most(
    flood: list[tuple[int, int]], visits: list[tuple[int, int]]
) -> None:
    served = engine()
    for caller, requests in ((FLOODER, flood), (VISITOR, visits)):
        for prompt, new_tokens in requests:
            served.add([1 + caller] * prompt, new_tokens, caller=caller, ignore_eos=True)
    while waiting(served) == {FLOODER, VISITOR}:
        served.serve()
        got = served.scheduler.queue.counters
        assert abs(got[FLOODER] - got[VISITOR]) <= SLOTS * 2 * LONGEST
    served.serve_until_idle()
    check_idle(served)


@settings(max_examples=60, deadline=None)
@given(flood=st.lists(lengths, min_size=1, max_size=60), steps=st.integers(0, 60))
def test_a_caller_that_arrives_after_a_flood_is_the_next_to_start(flood: list[tuple[int, int]], steps: int) -> None:
    served = engine(slots=1)
    for prompt, new_tokens in flood:
        served.add([1] * prompt, new_tokens, caller=FLOODER, ignore_eos=True)
    for _ in range(steps):
        served.serve()
    visit = served.add([2, 3], 3, caller=VISITOR, ignore_eos=True)
    begun = [s for s in served.sequences if s.slot is not None or s.finish]
    while visit.slot is None and not visit.finish:
        served.serve()
    passed = [s for s in served.sequences if (s.slot is not None or s.finish) and s not in [*begun, visit]]
    assert len(passed) <= 1, "only a tie goes to the caller that arrived first"


def test_absence_earns_nothing() -> None:
    served = engine(slots=1)
    served.add([1] * 8, 200, caller=FLOODER, ignore_eos=True)
    served.serve_until_idle()
    for caller in (VISITOR, FLOODER) * 5:
        served.add([2] * 8, 8, caller=caller, ignore_eos=True)
    turns: list[int] = []
    while not served.scheduler.idle:
        turns += [s.request.caller for s in served.dispatch().admitted]
        served.collect_all()
    assert turns == [VISITOR, FLOODER] * 5


def test_a_priority_moves_a_callers_own_requests_only() -> None:
    served = engine(slots=1)
    for number, caller in enumerate((FLOODER, VISITOR, FLOODER)):
        served.add([1 + number], 1, caller=caller, priority=-number)
    begun: list[int] = []
    while not served.scheduler.idle:
        begun += [s.request.id for s in served.dispatch().admitted]
        served.collect_all()
    assert begun == [2, 1, 0]


def test_where_there_is_one_caller_a_step_looks_at_no_more_requests_than_it_begins() -> None:
    served, asked = engine(), list[int]()
    for _ in range(50):
        served.add([1] * 8, 4)

    def only(sequence: Sequence) -> bool:
        asked.append(sequence.request.id)
        return True

    queue = served.scheduler.queue
    order = queue.in_order(only)
    assert [next(order), next(order)] == queue.waiting[:2] and asked == [0, 1]
