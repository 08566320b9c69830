"""Requests get a step that has run before, where first runs cost: on a GPU they record its graph."""

from collections.abc import Iterator

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.executor import bucket_chooser, device_state
from jaxengine.executor.device_state import DeviceState
from jaxengine.request.event import FinishReason
from jaxengine.scheduler.scheduler import Row
from jaxengine.step.buffer import StepShape
from jaxengine.step.upload import Upload
from tests.jaxengine.engines import EngineOf, ask, prompt, serve

REQUEST = ask(0, prompt(20), max_tokens=5)


@pytest.fixture
def engine(engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Decode steps of one and of two rows, of which only the larger has run."""
    engine = engine_of("llama2_gqa", every_bucket=True, max_batch_size=2, max_batch_prefill_tokens=16)
    small = engine.runner.shapes.decode(1)
    monkeypatch.setattr(engine.runner.buckets, "first_run", engine.runner._first_run)
    monkeypatch.setattr(engine.runner.buckets, "cold", [small])
    monkeypatch.setattr(engine.runner.buckets, "warm", {*engine.runner.shapes.step_shapes()} - {small})
    monkeypatch.setattr(bucket_chooser, "FIRST_RUN_SECONDS", float("inf"))
    yield engine
    engine.scheduler.reset()


@pytest.fixture
def decoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The rows of all decode steps that requests were in."""
    sizes: set[int] = set()
    upload = engine.runner._upload

    def spy(shape: StepShape, rows: list[Row]) -> Upload:
        if not shape.ragged:
            sizes.add(shape.rows)
        return upload(shape, rows)

    monkeypatch.setattr(engine.runner, "_upload", spy)
    return sizes


def test_a_larger_step_that_has_run_is_preferred(engine: Engine, decoded: set[int]) -> None:
    serve(engine, [REQUEST])
    assert decoded == {2}


def test_a_resting_engine_runs_what_is_new_and_then_uses_it(engine: Engine, decoded: set[int]) -> None:
    assert engine.step() is None
    serve(engine, [REQUEST])
    assert decoded == {1}


def test_a_first_run_changes_nothing_that_is_cached(engine: Engine) -> None:
    before = serve(engine, [REQUEST])[0]
    engine.step()
    after = serve(engine, [REQUEST])[0]
    assert (after.ids, after.cached_tokens) == (before.ids, 16)


def test_an_engine_that_never_rests_gets_there_too(
    engine: Engine, decoded: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_chooser, "FIRST_RUN_SECONDS", 0)
    serve(engine, [REQUEST])
    assert decoded == {1}


def test_finish_compiling_leaves_no_first_run_to_requests(engine: Engine, decoded: set[int]) -> None:
    engine.finish_compiling()
    serve(engine, [REQUEST])
    assert decoded == {1}


def test_a_step_whose_first_run_fails_is_left_out(
    engine: Engine, decoded: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caches are lost with it."""

    def failing(state: DeviceState, *_: object) -> None:
        for cache in state.layers:
            cache.delete()
        raise RuntimeError("device")

    with monkeypatch.context() as first_run:
        first_run.setitem(device_state.LAUNCHES, "backbone", failing)  # type: ignore[misc]
        engine.step()
    engine.step()
    assert serve(engine, [REQUEST])[0].finish is FinishReason.LENGTH
    assert decoded == {2}
