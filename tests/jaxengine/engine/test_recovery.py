"""A step that fails costs nobody but the culprit, and a device that always fails ends the engine.

The failing runner is the real one: it launches the step, which donates the caches, destroys them, and then raises.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import pytest
from jax import Array

from jaxengine.cache.page_tables import Fork
from jaxengine.engine.engine import MAX_LONE_FAILURES, Engine, EngineFailure
from jaxengine.engine.fault_isolation import CulpritSearch
from jaxengine.executor.device_state import kind_of
from jaxengine.executor.runner import BackboneLaunch, Runner
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Request, Sequence
from jaxengine.step.results import InFlight, Results
from tests.jaxengine.beam_references import beams
from tests.jaxengine.engines import Answer, Answers, alone, ask, check_idle, finish, prompt, serve, step

ROWS = 32
REQUESTS = [
    ask(number, prompt(4 + number % 9, seed=number), max_tokens=6 + number % 5, temperature=number % 3 / 2)
    for number in range(ROWS)
]
CULPRIT = 13

Fails = Callable[[Plan], bool]


class BrokenDevice(RuntimeError):
    pass


class FailingRunner:
    """The runner `inner`, except that a step for whose plan `fails` says so is lost, and the caches with it."""

    def __init__(self, inner: Runner, fails: Fails, at: str) -> None:
        self.inner = inner
        self.buckets = inner.buckets
        self.fails = fails
        self.at = at  # "backbone" or "sample", once that is launched, or "fetch"
        self.failures = 0

    def launch_backbone(self, plan: Plan) -> BackboneLaunch:
        launch = self.inner.launch_backbone(plan)
        self._maybe_fail(plan, "backbone")
        return launch

    def launch_sample(self, launch: BackboneLaunch) -> InFlight:
        flight = self.inner.launch_sample(launch)
        self._maybe_fail(launch.plan, "sample")
        return flight

    def fetch(self, flight: InFlight) -> Results:
        self._maybe_fail(flight.plan, "fetch")
        return self.inner.fetch(flight)

    def regrow(self, beams: list[Sequence], forks: list[Fork]) -> None:
        self.inner.regrow(beams, forks)

    def reset(self) -> None:
        self.inner.reset()

    def warm_next(self) -> bool:
        return self.inner.warm_next()

    def _maybe_fail(self, plan: Plan, at: str) -> None:
        if self.at == at and self.fails(plan):
            self.failures += 1
            for cache in self.inner.state.layers:
                cache.delete()
            raise BrokenDevice


class NanRunner:
    """The runner `inner`, except that the logits of request `culprit` are not finite once it has `after` tokens."""

    def __init__(self, inner: Runner, culprit: int, *, after: int = 0) -> None:
        self.inner = inner
        self.buckets = inner.buckets
        self.culprit = culprit
        self.after = after

    def launch_backbone(self, plan: Plan) -> BackboneLaunch:
        return self.inner.launch_backbone(plan)

    def launch_sample(self, launch: BackboneLaunch) -> InFlight:
        return self.inner.launch_sample(launch)

    def regrow(self, beams: list[Sequence], forks: list[Fork]) -> None:
        self.inner.regrow(beams, forks)

    def warm_next(self) -> bool:
        return self.inner.warm_next()

    def fetch(self, flight: InFlight) -> Results:
        results = self.inner.fetch(flight)
        for i, (row, position) in enumerate(zip(flight.samples.rows, flight.samples.position, strict=True)):
            if row.sequence.request.id == self.culprit and position >= row.sequence.prompt_length + self.after:
                results.sampled.finite[i] = False
        return results


class NoMemory:
    """`executables`, of which the first step finds no memory: it donates nothing, and its arguments stay with it."""

    def __init__(self, executables: Mapping[Hashable, Any]) -> None:
        self.executables = executables
        self.caches: tuple[Array, ...] = ()
        self.alive: list[bool] = []  # of these, once new ones are asked for

    def __getitem__(self, name: Hashable) -> Any:
        if kind_of(name) == "backbone" and not self.caches:
            return self._step
        if name == "allocate":
            self.alive = [not cache.is_deleted() for cache in self.caches]
        return self.executables[name]

    def _step(self, leaves: object, adapters: object, caches: tuple[Array, ...], *others: object) -> None:
        self.caches = caches
        raise MemoryError


def holds(*culprits: int) -> Fails:
    return lambda plan: any(row.sequence.request.id in culprits for row in plan.rows)


@pytest.fixture
def engine(wide: Engine) -> Iterator[Engine]:
    """The wide engine, mended after the test."""
    runner = wide.runner
    yield wide
    wide.runner, wide.flight = runner, None
    wide.scheduler.reset()
    runner.reset()
    for request in list(wide.requests.live):
        wide.cancel(request)
    while not wide.idle:
        wide.step()
    serve(wide, [ask(1, [1])])  # a good step ends the run of failures
    check_idle(wide)


@pytest.fixture(scope="module")
def expected(wide: Engine) -> Answers:
    return {request.id: alone(wide, request) for request in REQUESTS}


def failing(engine: Engine, fails: Fails, at: str = "sample") -> FailingRunner:
    engine.runner = runner = FailingRunner(engine.runner, fails, at)  # type: ignore[assignment]
    return runner


@pytest.mark.parametrize("at", ["backbone", "sample", "fetch"])
def test_only_the_request_that_breaks_its_steps_fails(engine: Engine, expected: Answers, at: str) -> None:
    runner = failing(engine, holds(CULPRIT), at)
    answers = serve(engine, REQUESTS)
    assert answers[CULPRIT].finish is FinishReason.ERROR and "failed inside the engine" in answers[CULPRIT].error
    for request in REQUESTS:
        if request.id != CULPRIT:
            assert answers[request.id].ids == expected[request.id].ids
            assert answers[request.id].finish is FinishReason.LENGTH
    assert runner.failures <= math.log2(ROWS) + 1


def test_a_culprit_found_in_mid_answer_keeps_what_it_had(engine: Engine, expected: Answers) -> None:
    failing(engine, lambda plan: any(r.sequence.request.id == CULPRIT and r.sequence.generated > 3 for r in plan.rows))
    answers = serve(engine, REQUESTS)
    assert answers[CULPRIT].finish is FinishReason.ERROR
    assert answers[CULPRIT].ids and answers[CULPRIT].ids == expected[CULPRIT].ids[: len(answers[CULPRIT].ids)]
    others = [request.id for request in REQUESTS if request.id != CULPRIT]
    assert [answers[number].ids for number in others] == [expected[number].ids for number in others]


@pytest.mark.parametrize("requests", [REQUESTS, REQUESTS[:1]], ids=["of many", "of one"])
@pytest.mark.parametrize("when", [1, 2, 5])
def test_a_failure_that_does_not_repeat_costs_nobody(
    engine: Engine, expected: Answers, requests: list[Request], when: int
) -> None:
    steps = iter(range(1, 10_000))
    runner = failing(engine, lambda plan: next(steps) == when)
    answers = serve(engine, requests)
    assert runner.failures == 1
    assert {number: answer.ids for number, answer in answers.items()} == {r.id: expected[r.id].ids for r in requests}


def test_two_culprits_of_different_batches_are_both_found(engine: Engine, expected: Answers) -> None:
    runner = failing(engine, holds(3, 29))
    answers = serve(engine, REQUESTS)
    assert {number for number, answer in answers.items() if answer.finish is FinishReason.ERROR} == {3, 29}
    assert all(answers[n].ids == expected[n].ids for n in answers if n not in (3, 29))
    assert runner.failures <= 2 * (math.log2(ROWS) + 1)


def test_a_search_is_cleared_only_once_all_its_beams_have_run(engine: Engine, expected: Answers) -> None:
    """Computed again, the beams of so long a text are not all sampled in one step."""

    def breaks(row: Row) -> bool:
        sequence = row.sequence
        return sequence.beams is not None and sequence.members[-1] is sequence and row.samples > 0

    runner = failing(engine, lambda plan: any(map(breaks, plan.rows)))
    search = beams(100, prompt(110), BeamSearch(width=6), [9], max_tokens=8)
    answers = serve(engine, [search, *REQUESTS[:8]])
    assert answers[100].finish is FinishReason.ERROR and "failed inside the engine" in answers[100].error
    assert all(answers[request.id].ids == expected[request.id].ids for request in REQUESTS[:8])
    assert runner.failures <= math.log2(8) + 2


def test_the_prefix_cache_is_empty_after_a_failure(engine: Engine) -> None:
    ids = prompt(50, seed=77)
    serve(engine, [ask(100, ids)])
    assert engine.stats().pages_cached > 0
    once = iter([True])
    failing(engine, lambda plan: next(once, False))
    expected = alone(engine, ask(100, ids)).ids
    assert serve(engine, [ask(100, ids)])[100].ids == expected


def test_a_culprit_cancelled_while_suspected_holds_nobody_up(engine: Engine, expected: Answers) -> None:
    failing(engine, holds(CULPRIT))
    answers = {request.id: Answer() for request in REQUESTS}
    for request in REQUESTS:
        engine.submit(request)
    while not engine.culprit_search:
        step(engine, answers)
    engine.cancel(CULPRIT)
    finish(engine, answers)
    assert answers[CULPRIT].finish is FinishReason.CANCELLED
    assert all(answers[n].ids == expected[n].ids for n in answers if n != CULPRIT)


def test_a_culprit_cancelled_while_its_step_runs_does_not_end_the_engine(engine: Engine) -> None:
    failing(engine, holds(CULPRIT), "fetch")
    answers = {CULPRIT: Answer()}
    engine.submit(REQUESTS[CULPRIT])
    step(engine, answers)
    engine.cancel(CULPRIT)
    finish(engine, answers)
    assert answers[CULPRIT].finish is FinishReason.CANCELLED


def test_a_device_that_always_fails_ends_the_engine_soon(engine: Engine) -> None:
    runner = failing(engine, lambda plan: True)
    with pytest.raises(EngineFailure, match=f"{MAX_LONE_FAILURES} steps in a row failed"):
        serve(engine, REQUESTS)
    assert runner.failures <= 2 * (math.log2(ROWS) + 1)


def test_caches_that_cannot_be_rebuilt_end_the_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = failing(engine, holds(CULPRIT))

    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr(runner, "reset", no_memory)
    with pytest.raises(EngineFailure, match="cannot be rebuilt"):
        serve(engine, REQUESTS)


def test_caches_of_a_step_that_found_no_memory_are_gone_before_there_are_new_ones(
    engine: Engine, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them would not fit."""
    state = engine.runner.state
    executables = NoMemory(state.executables)  # type: ignore[arg-type]
    monkeypatch.setattr(state, "executables", executables)
    answers = serve(engine, REQUESTS[:2])
    assert executables.alive == [False, False]
    assert {number: answer.ids for number, answer in answers.items()} == {n: expected[n].ids for n in answers}


def test_logits_that_are_not_finite_end_their_own_request_only(engine: Engine, expected: Answers) -> None:
    engine.runner = NanRunner(engine.runner, CULPRIT)  # type: ignore[assignment]
    answers = serve(engine, REQUESTS)
    assert answers[CULPRIT].finish is FinishReason.ERROR and "not finite" in answers[CULPRIT].error
    assert answers[CULPRIT].ids == []
    assert all(answers[n].ids == expected[n].ids for n in answers if n != CULPRIT)


@pytest.mark.parametrize("after", [0, 3])
def test_pages_of_a_sequence_that_was_not_finite_are_never_found_again(engine: Engine, after: int) -> None:
    ids = prompt(50, seed=78 + after)
    inner = engine.runner
    engine.runner = NanRunner(inner, 200, after=after)  # type: ignore[assignment]
    assert len(serve(engine, [ask(200, ids)])[200].ids) == after
    engine.runner = inner
    assert serve(engine, [ask(201, ids)])[201].cached_tokens == 0


# --- the search itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 7, 8, 31, 32, 256])
def test_the_search_takes_at_most_log2_n_and_one_failures(size: int) -> None:
    for culprit in range(0, size, max(1, size // 16)):
        search, live, group, failures = CulpritSearch(), set(range(size)), set(range(size)), 0
        while True:
            if culprit in group:
                failures += 1
                if search.step_failed(sorted(group)) is not None:
                    break
            else:
                search.step_succeeded(group)
            group = search.current(live) or set()
        assert failures <= math.ceil(math.log2(size)) + 1
