"""A step is launched in two parts: its backbone, then its samples; the host may read the step before in between."""

from collections import defaultdict
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxengine.engine.engine import Engine
from jaxengine.executor.runner import BackboneLaunch
from jaxengine.request.beam_search import BeamSearch
from jaxengine.step.results import InFlight
from tests.jaxengine.beam_references import beams
from tests.jaxengine.engines import Named, ask, prompt, serve

REQUESTS = [
    ask(0, prompt(20), max_tokens=9),
    ask(1, prompt(9, seed=1), max_tokens=12, temperature=1.0, top_p=0.9),
    ask(2, prompt(33, seed=2), max_tokens=5, temperature=0.7, repetition_penalty=1.3, logprobs=3),
]


def test_reading_a_step_between_the_launches_of_the_next_changes_no_token(
    wide: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = serve(wide, REQUESTS)
    launch_sample, fetch = wide.runner.launch_sample, wide.runner.fetch
    flights: list[InFlight] = []
    read: dict[int, list[int]] = defaultdict(list)

    def reading(launch: BackboneLaunch) -> InFlight:
        if flights:
            for row, token in zip(flights[-1].samples.rows, fetch(flights[-1]).sampled.tokens, strict=True):
                read[row.sequence.request.id].append(token.id)
        flights.append(launch_sample(launch))
        return flights[-1]

    monkeypatch.setattr(wide.runner, "launch_sample", reading)
    answers = serve(wide, REQUESTS)
    for number, answer in expected.items():
        assert answers[number].ids == answer.ids
        early = len(read[number])  # nothing is launched behind the last step
        assert read[number] == answer.ids[:early] and early >= len(answer.ids) - 1


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_a_step_is_one_upload_and_two_launches(
    wide: Engine, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    state, uploads = wide.runner.state, list[Any]()
    spy, put = Named(state.executables), state._put
    monkeypatch.setattr(state, "executables", spy)
    monkeypatch.setattr(state, "_put", lambda values: uploads.append(values) or put(values))
    before = wide.stats().steps
    serve(wide, [ask(0, prompt(20), max_tokens=8, **params), ask(1, prompt(9), max_tokens=5, **params)])
    steps = wide.stats().steps - before
    assert [name[0] for name in spy.called] == ["backbone", "sample"] * steps
    assert len(uploads) == steps


def test_a_step_places_nothing_before_its_launches(wide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executables take the host's arrays as they are, where all devices are this process's."""
    placed = list[Any]()
    monkeypatch.setattr(jax, "device_put", lambda *what, **_: placed.append(what))
    serve(wide, REQUESTS)
    assert not placed


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"prompt_logprobs": True}], ids=["greedy", "sampled", "scored"]
)
def test_launches_are_given_no_module(wide: Engine, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]) -> None:
    """JAX would flatten it in Python, each time."""
    given = list[Any]()

    class Watched(Named):
        def __getitem__(self, name: Any) -> Any:
            return lambda *arguments: given.append(arguments) or self.executables[name](*arguments)

    monkeypatch.setattr(wide.runner.state, "executables", Watched(wide.runner.executables))
    serve(wide, [ask(0, prompt(20), max_tokens=3, **params)])
    leaves = jax.tree.leaves(given, is_leaf=lambda each: isinstance(each, nnx.Module))
    assert given and not [each for each in leaves if isinstance(each, nnx.Module)]


def test_nobody_writes_to_an_array_that_a_launch_was_given(wide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may read it later, and a CPU reads it where it lies."""
    launch, given = wide.runner.state.launch, list[np.ndarray]()

    def sealing(name: Any, *arrays: Any) -> Any:
        for array in filter(lambda each: isinstance(each, np.ndarray), arrays):  # a NumPy number cannot be written to
            array.flags.writeable = False  # a later write raises
            assert not any(np.shares_memory(array, each) for each in given), "memory that is used again"
            given.append(array)
        return launch(name, *arrays)

    monkeypatch.setattr(wide.runner.state, "launch", sealing)
    wants = ask(9, prompt(40, seed=3), max_tokens=1, logits="all")
    answers = serve(wide, [*REQUESTS, ask(3, prompt(25), max_tokens=9, prompt_logprobs=True), wants])
    assert given and all(not answer.error for answer in answers.values())


@pytest.mark.parametrize(
    ("params", "fills"),
    [({}, 0), ({"logit_bias": {9: 1.0}, "min_tokens": 2}, 3), ({"repetition_penalty": 1.3}, 3 + 3 * 7)],
    ids=["plain", "biased", "penalised"],
)
def test_a_search_sends_the_sampler_only_what_changes(
    wide: Engine, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], fills: int
) -> None:
    """A bias stays as it was when the beams took their slots. Counts are sent behind each of 8 tokens but the last."""
    spy = Named(wide.runner.executables)
    monkeypatch.setattr(wide.runner.state, "executables", spy)
    serve(wide, [beams(0, prompt(20), BeamSearch(width=3, early_stopping="never"), (), max_tokens=8, **params)])
    assert spy.called.count("fill_slot") == fills
