"""Adapters lie in slots as long as they are used, and who waits for a slot waits for a bounded time."""

import pytest

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.adapter_slots import AdapterSlots
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.invariants import check_idle


def adapter(name: str) -> LoadedAdapter:
    return LoadedAdapter(name.encode(), {})


A, B, C = map(adapter, "ABC")


def test_an_adapter_is_placed_once_however_many_take_it() -> None:
    slots = AdapterSlots(2)
    assert slots.take(A) == (0, True)
    assert slots.take(adapter("A")) == (0, False)  # loaded again, with the same weights
    assert slots.take(B) == (1, True)


def test_there_is_room_for_what_is_there_and_for_what_can_replace_an_unused_one() -> None:
    slots = AdapterSlots(2)
    slots.take(A)
    assert slots.has_room(B)
    slots.take(B)
    assert slots.has_room(A) and slots.has_room(B) and not slots.has_room(C)
    slots.release(1)
    assert slots.has_room(C)
    assert slots.take(C) == (1, True)
    assert not slots.has_room(B)


def test_a_slot_is_held_until_the_last_that_took_it_releases_it() -> None:
    slots = AdapterSlots(1)
    slots.take(A)
    slots.take(A)
    slots.release(0)
    assert not slots.has_room(B)
    slots.release(0)
    assert slots.take(B) == (0, True)


def test_an_unused_adapter_stays_and_the_one_unused_for_longest_goes_first() -> None:
    slots = AdapterSlots(2)
    for each in (A, B, A):
        slots.release(slots.take(each)[0])
    assert slots.take(C) == (1, True)  # B was used before A
    assert slots.take(A) == (0, False)


def test_after_a_reset_nothing_is_placed_or_held() -> None:
    slots = AdapterSlots(1)
    slots.take(A)
    slots.reset()
    assert slots.take(B) == (0, True)


def test_an_engine_without_slots_has_no_room() -> None:
    assert not AdapterSlots(0).has_room(A)


# --- who may pass whom --------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> FakeEngine:
    """Two slots of the stacks, eight rows, and two requests that run for long and use both."""
    engine = FakeEngine(pages=200, page_size=4, slots=8, token_budget=64, adapter_slots=2)
    for name in "AB":
        engine.add([1, 2, 3], 60, adapter=name, ignore_eos=True)
    return engine


def admitted(engine: FakeEngine) -> list[Sequence]:
    plan = engine.dispatch()
    engine.collect_all()
    return plan.admitted


def test_one_whose_adapter_has_no_slot_holds_up_nobody(served: FakeEngine) -> None:
    admitted(served)
    third = served.add([1, 2], adapter="C")
    base, shares = served.add([1, 3]), served.add([1, 4], adapter="A")
    assert admitted(served) == [base, shares]
    served.serve_until_idle()
    check_idle(served)
    assert third.cached_tokens == 0


def test_it_begins_as_soon_as_a_slot_falls_free(served: FakeEngine) -> None:
    admitted(served)
    third = served.add([1, 2], adapter="C")
    assert admitted(served) == []
    served.abort(served.sequences[0])
    assert admitted(served) == [third] and third.adapter_slot == 0


def test_only_so_many_with_adapters_pass_it_and_others_still_do(served: FakeEngine) -> None:
    """However fast requests for the two adapters that lie there come."""
    served.scheduler.admission.most_passing = 4
    admitted(served)
    third = served.add([1, 2], adapter="C")
    passing = []
    while third.slot is None:
        number = len(served.sequences)
        served.add([1, 2, 3], 30, adapter="AB"[number % 2], seed=number)
        base = served.add([1, 3], 1)
        begun = admitted(served)
        if third not in begun:
            passing += [one for one in begun if one.adapter]
            assert base in begun
    assert len(passing) == third.passed_by == 4


def test_one_plan_may_replace_all_that_nobody_uses(served: FakeEngine) -> None:
    served.serve_until_idle()
    first, second, third = (served.add([1, 2], adapter=name) for name in "CAD")
    assert admitted(served) == [first, second] and third.slot is None
    served.serve_until_idle()
    check_idle(served)
