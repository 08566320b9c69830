"""The scheduler keeps every invariant under any sequence of events: 104,000 random ones, and those of hypothesis.

Pools are tiny, so that growth preempts; prompts are cut from a few shared texts, so that prefixes meet.
"""

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxengine.request.beam_search import BeamSearch, EarlyStopping
from jaxengine.request.event import FinishReason
from tests.jaxengine.fake_engine import MAX_IN_FLIGHT, FakeEngine
from tests.jaxengine.invariants import check_idle, check_state
from tests.jaxengine.random_walk import Walk

WALKS, EVENTS = 260, 400


@pytest.fixture(scope="module")
def walks() -> list[Walk]:
    return [Walk(seed).run(EVENTS) for seed in range(WALKS)]


def test_random_events_keep_every_invariant_and_leave_nothing_behind(walks: list[Walk]) -> None:
    for walk in walks:
        walk.engine.serve_until_idle()
        check_idle(walk.engine)


def test_the_random_events_meet_what_they_are_meant_to_meet(walks: list[Walk]) -> None:
    met: Counter[str] = sum((walk.engine.events for walk in walks), Counter())
    events: tuple[str, ...] = ("preemptions", "drains", "hits", "evictions", "chunks", "rows of ended requests")
    events += ("encoder inputs again", "released pages", "hits behind a window", "hits behind one of several windows")
    events += (
        "failures",
        "placements",
        "adapters replaced",
        "hits of an adapter's own",
        "waits for an adapter",
        "barred",
        "resumed",
        "right guesses",
        "wrong guesses",
        "pages for drafts",
    )
    events += (
        "forks of whole pages",
        "forks behind a window",
        "copies",
        "searches that take all slots",
        "searches with an adapter",
        "searches preempted",
        "searches that go on",
        "beams with a cached prefix",
    )
    events += ("encoded", "evicted images", "ends before an image", "images cut", "begun inside an image")
    events += ("images read again", "images of searches", "waits for room")
    events += ("saves", "restores", "guesses computed again")
    for event in events:
        assert met[event] >= 30, f"{event}: {met}"
    few: tuple[str, ...] = ("ends inside a draft", "drafts of ended requests", "rope switches of searches")
    few += ("runs cut", "beams that wait for tokens", "searches interrupted half way", "searches interrupted asleep")
    for event in few:
        assert met[event] >= 10, f"{event}: {met}"
    ends = Counter((s.finish, s.beams is not None) for walk in walks for s in walk.engine.sequences)
    for reason in ("LENGTH", "EOS", "STOP_TOKEN", "CANCELLED", "DEADLINE", "ERROR"):
        for searches in (False, True):
            assert ends[FinishReason[reason], searches] >= 50, f"{reason}: {ends}"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_events_give_the_same_plans(seed: int) -> None:
    first, second = Walk(seed).run(EVENTS), Walk(seed).run(EVENTS)
    assert first.engine.decisions == second.engine.decisions


class SchedulerMachine(RuleBasedStateMachine):
    """The walk's events, chosen and shrunk by hypothesis."""

    @initialize(
        page_size=st.sampled_from([1, 2, 3, 16]),
        slots=st.integers(1, 4),
        spare=st.sampled_from([0, 1, 4, 508]),
        tokens=st.integers(8, 40),
        kind=st.sampled_from(["plain", "prefix cache", "encoder"]),
        windows=st.sampled_from([(0,), (2,), (9,), (0, 2), (0, 4, 4)]),
        adapter_slots=st.integers(0, 2),
        drafts=st.sampled_from([None, 1, 2]),
    )
    def start(
        self,
        page_size: int,
        slots: int,
        spare: int,
        tokens: int,
        kind: str,
        windows: tuple[int, ...],
        adapter_slots: int,
        drafts: int | None,
    ) -> None:
        windows = (0,) if kind == "encoder" else windows
        self.engine = FakeEngine(
            pages=2 + len(windows) * (tokens // page_size),
            page_size=page_size,
            slots=slots,
            token_budget=slots + spare,
            prefix_cache=kind == "prefix cache",
            encoder=kind == "encoder",
            windows=windows,
            adapter_slots=adapter_slots,
            drafts=random.Random(drafts) if drafts else None,
        )

    @rule(
        base=st.integers(0, 5),
        prefix=st.integers(0, 30),
        tail=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        max_tokens=st.integers(1, 20),
        salt=st.sampled_from([b"", b"a"]),
        priority=st.integers(-1, 1),
        timeout=st.sampled_from([None, 20.0]),
        flags=st.tuples(st.booleans(), st.booleans()),
        adapter=st.sampled_from(["", "a", "b", "c"]),
        width=st.integers(0, 4),
        early_stopping=st.sampled_from([True, False, "never"]),
        resumed=st.sampled_from([0, 1, 5]),
    )
    def add(
        self,
        base: int,
        prefix: int,
        tail: list[int],
        max_tokens: int,
        salt: bytes,
        priority: int,
        timeout: float | None,
        flags: tuple[bool, bool],
        adapter: str,
        width: int,
        early_stopping: EarlyStopping,
        resumed: int,
    ) -> None:
        """A request that starts as an earlier one, or as a fixed text; with a width, a beam search."""
        earlier = self.engine.sequences[base].tokens if base < len(self.engine.sequences) else [1, 2, 3, 4] * 4
        prompt = earlier[:prefix] + tail
        if self.engine.fits(len(prompt), max_tokens, max(1, width)):
            self.engine.add(
                prompt,
                max_tokens,
                salt=salt,
                priority=priority,
                timeout=timeout,
                prompt_logprobs=flags[0] and flags[1] and not width,
                ignore_eos=flags[0],
                adapter=adapter if self.engine.scheduler.batch.adapters.slots else "",
                search=BeamSearch(width=width, early_stopping=early_stopping) if width else None,
                resumed=0 if width else resumed,
            )

    @precondition(lambda self: len(self.engine.steps) < MAX_IN_FLIGHT)
    @rule(times=st.integers(1, 4))
    def serve(self, times: int) -> None:
        for _ in range(times):
            self.engine.serve()
            check_state(self.engine)

    @precondition(lambda self: len(self.engine.steps) < MAX_IN_FLIGHT)
    @rule()
    def dispatch(self) -> None:
        self.engine.dispatch()

    @precondition(lambda self: self.engine.steps)
    @rule()
    def collect(self) -> None:
        self.engine.collect()

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(self.engine.sequences)))

    @precondition(lambda self: self.engine.scheduler.batch.running)
    @rule(data=st.data())
    def poison(self, data: st.DataObject) -> None:
        self.engine.device.poisoned.add(data.draw(st.sampled_from(self.engine.scheduler.batch.running)).request.id)

    @rule(seconds=st.sampled_from([1.0, 30.0, 90.0]))
    def advance(self, seconds: float) -> None:
        self.engine.advance(seconds)

    @rule()
    def fail(self) -> None:
        self.engine.fail()

    @invariant()
    def holds(self) -> None:
        check_state(self.engine)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.serve_until_idle()
            check_idle(self.engine)


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
TestSchedulerMachine = SchedulerMachine.TestCase
