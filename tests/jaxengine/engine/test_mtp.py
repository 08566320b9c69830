"""The module with which a model was trained to predict a token more guesses what transformers guesses with it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import load_engine
from tests.jaxengine.drafters import Watched
from tests.jaxengine.engine.test_eagle import REQUESTS, assert_answers_are_the_same, assert_guessed
from tests.jaxengine.engines import ask, prompt
from tests.jaxengine.shared_executables import shared_executables
from tests.mtp import TinyModule

pytestmark = pytest.mark.slow


def drafting(directory: Path, **config: object) -> Engine:
    asked = json.dumps({"method": "mtp", **config})
    options = EngineOptions(max_batch_size=2, max_batch_prefill_tokens=32, speculative_config=asked)
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
    config = {"num_speculative_tokens": guesses} if guesses > 1 else {}
    engine = drafting(made.write(tmp_path / "model"), **config)
    compiles, shared = COMPILES.unexpected, prompt(90, seed=9)
    further = [ask(10 + number, shared[: 70 + number], max_tokens=20, temperature=number / 2) for number in range(3)]
    watched = Watched(engine.runner.draft)
    assert_answers_are_the_same(engine, watched, [*REQUESTS, *further])
    assert len(watched.asked) > 40 and COMPILES.unexpected == compiles
    assert max(len(asked.proposal.ids) for asked in watched.asked) == guesses == engine.description.max_draft_tokens
    assert_guessed(watched, made, zoo(name))  # type: ignore[arg-type]


def test_a_model_without_one_is_refused(zoo: Callable[[str], Path]) -> None:
    for name in ("glm4_moe", "qwen3"):
        with pytest.raises(ValueError, match="method 'mtp', but the model's files hold no module that drafts"):
            drafting(zoo(name))
