"""Ready means that a request was answered, of which nothing is left to see."""

from typing import Any

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.engine.rehearsal import rehearse
from jaxengine.executor.runner import Runner
from tests.jaxengine.engines import EngineOf, ask, check_idle, prompt, serve


@pytest.fixture
def engine(engine_of: EngineOf) -> Engine:
    """A new one each time: what is left of a rehearsal would be in the next."""
    return engine_of.__wrapped__("llama2_gqa")  # type: ignore[attr-defined]


def test_it_is_a_prompt_step_and_at_least_one_decode_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    step_shapes = []
    launch_backbone = Runner.launch_backbone

    def spy(self: Runner, plan: Any) -> Any:
        step_shapes.append(self.buckets.step(plan))
        return launch_backbone(self, plan)

    monkeypatch.setattr(Runner, "launch_backbone", spy)
    rehearse(engine)
    assert [shape.ragged for shape in step_shapes] == [True, False, False]


def test_it_leaves_no_trace(engine: Engine) -> None:
    before = engine.stats()
    rehearse(engine)
    check_idle(engine)
    assert engine.stats() == before
    answer = serve(engine, [ask(0, prompt(20), max_tokens=5)])[0]
    assert (answer.cached_tokens, engine.stats().prompt_tokens, engine.stats().generated_tokens) == (0, 20, 5)
    assert engine.stats().compiles_after_warmup == 0


def test_requests_are_answered_as_they_are_without_it(engine: Engine, engine_of: EngineOf) -> None:
    rehearse(engine)
    requests = [ask(number, prompt(9, seed=number), temperature=1, max_tokens=5) for number in range(3)]
    rehearsed, other = serve(engine, requests), serve(engine_of("llama2_gqa"), requests)
    assert [rehearsed[number].ids for number in range(3)] == [other[number].ids for number in range(3)]


def test_an_engine_whose_steps_fail_is_never_ready(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("device")

    monkeypatch.setattr(Runner, "fetch", failing)
    with pytest.raises(RuntimeError, match="does not answer"):
        rehearse(engine)


def test_the_shortest_requests_there_may_be_are_enough(engine_of: EngineOf) -> None:
    rehearse(engine_of("llama2_gqa", max_total_tokens=2))
