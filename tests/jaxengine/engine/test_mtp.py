"""The module with which a model was trained to predict a token more guesses what transformers guesses with it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.startup.build import load_engine
from tests.jaxengine.drafters import Watched, eager
from tests.jaxengine.drafting import assert_same, speculator
from tests.jaxengine.engine.test_eagle import REQUESTS, assert_answers_are_the_same, assert_guessed
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.jaxengine.seeing import SeenPrompt
from tests.jaxengine.shared_executables import shared_executables
from tests.mtp import TinyModule
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow


SMALL = {"max_batch_size": 2, "max_batch_prefill_tokens": 32}
SEEING = {"max_batch_size": 2, "max_batch_prefill_tokens": 64, "max_image_patches": 128, "max_total_tokens": 128}


def drafting(directory: Path, guesses: int | None = None, **chosen: object) -> Engine:
    config = {"method": "mtp"} | ({"num_speculative_tokens": guesses} if guesses else {})
    options = EngineOptions(**{**SMALL, **chosen, "speculative_config": json.dumps(config)})  # type: ignore[arg-type]
    with shared_executables():
        engine = load_engine(open_model(str(directory)), options)
    engine.finish_compiling()
    return engine


@pytest.mark.parametrize(
    ("name", "guesses"),
    [
        ("glm4_moe", 1),
        ("glm4_moe_groups", 3),
        ("deepseek_v3", 2),
        ("qwen3_5", 3),
        ("qwen3_5_moe", 1),
        ("qwen3_next", 2),
    ],
)
def test_what_is_proposed_is_what_transformers_guesses(
    zoo: Callable[[str], Path], compile_cache: None, tmp_path: Path, name: str, guesses: int
) -> None:
    """Over prompts in one part and in several, and prefixes that are shared. Without a number it is one guess."""
    made = TinyModule(zoo(name))
    engine = drafting(made.write(tmp_path / "model"), guesses if guesses > 1 else None)
    compiles, shared = COMPILES.unexpected, prompt(90, seed=9)
    further = [ask(10 + number, shared[: 70 + number], max_tokens=20, temperature=number / 2) for number in range(3)]
    watched = Watched(engine.runner.draft)
    assert_answers_are_the_same(engine, watched, [*REQUESTS, *further])
    assert len(watched.asked) > 40 and COMPILES.unexpected == compiles
    assert max(len(asked.proposal.ids) for asked in watched.asked) == guesses == engine.description.max_draft_tokens
    assert_guessed(watched, made, zoo(name))  # type: ignore[arg-type]


def test_beams_are_those_without_it(zoo: Callable[[str], Path], compile_cache: None, tmp_path: Path) -> None:
    """A beam that becomes another has its states, and a page that is copied has its features."""
    directory = TinyModule(zoo("qwen3_5")).write(tmp_path / "model")
    requests = [ask(n, prompt(21 + n, seed=n), max_tokens=12, beams=BeamSearch(width=2)) for n in range(3)]
    expected = serve(load(directory, max_batch_size=2), requests)
    engine = drafting(directory)
    answers = serve(engine, [*requests, *(ask(9 + n, prompt(30 + n), max_tokens=20) for n in range(2))])
    for request in requests:
        found, theirs = answers[request.id].beams, expected[request.id].beams
        assert [[token.id for token in each.tokens] for each in found] == [
            [token.id for token in each.tokens] for each in theirs
        ]
        assert [each.score for each in found] == pytest.approx([each.score for each in theirs], abs=1e-4)


def test_behind_pictures_it_changes_no_answer(compile_cache: None, tmp_path: Path) -> None:
    """It is told neither of pictures nor of their positions, so that it guesses worse there."""
    directory = TinyModule(write_vision(tmp_path / "whole", "qwen3_5")).write(tmp_path / "model")
    reference, options = Reference(directory, "qwen3_5"), EngineOptions(**SEEING)  # type: ignore[arg-type]
    plain_engine = load_engine(open_model(str(directory)), options)
    engine = drafting(directory, **SEEING)
    vision = engine.runner.shapes.spec.vision
    assert vision is not None
    seen = [SeenPrompt.of(reference, vision, "What is {} there?", [noise(64, 40, n)]) for n in range(3)]
    requests = [each.ask(n, max_tokens=16) for n, each in enumerate(seen)]
    expected, watched = serve(plain_engine, requests), Watched(engine.runner.draft)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, requests)
    assert len(watched.asked) > 20 and engine.stats().images_encoded == 3
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request, within=1e-3)


def test_a_model_without_one_is_refused(zoo: Callable[[str], Path]) -> None:
    for name in ("glm4_moe", "qwen3"):
        with pytest.raises(ValueError, match="method 'mtp', but the model's files hold no module that drafts"):
            drafting(zoo(name))
