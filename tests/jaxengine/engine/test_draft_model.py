"""A draft model guesses what transformers continues greedily, and whatever it guesses changes no answer."""

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from convert.source import open_model
from jaxengine.architecture.drafter import DraftModelSource
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.table import EngineOptions
from jaxengine.request.sequence import Sequence
from jaxengine.startup.build import load_engine
from tests.jaxengine.drafters import Forged, Watched, eager
from tests.jaxengine.drafting import MANNERS, assert_same, plain, speculator
from tests.jaxengine.engines import ask, prompt, serve
from tests.jaxengine.shared_executables import shared_executables
from tests.tiny import load_reference, write_tiny

pytestmark = pytest.mark.slow

GUESSES = 3
REQUESTS = [
    ask(number, prompt(3 + 7 * number, seed=number), max_tokens=12 + number, temperature=number % 3 / 2)
    for number in range(6)
]
OTHER: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the same tokens."""
    return write_tiny(tmp_path_factory.mktemp("draft"), "llama", seed=7, **OTHER)


def drafting(directory: Path, draft: Path, guesses: int = GUESSES, **options: object) -> Engine:
    model = replace(open_model(str(directory)), drafter=DraftModelSource(open_model(str(draft)).source))
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": guesses}
    chosen = {"max_batch_size": 4, "max_batch_prefill_tokens": 64, "speculative_config": config, **options}
    with shared_executables():
        engine = load_engine(model, EngineOptions(**chosen))  # type: ignore[arg-type]
    engine.finish_compiling()
    return engine


@cache
def continued(directory: Path, tokens: tuple[int, ...], count: int) -> tuple[list[int], list[float]]:
    """What transformers appends greedily, and the chance of each token."""
    model, ids, chances = _reference(directory), [*tokens], []
    for _ in range(count):
        with torch.no_grad():
            chance = model(torch.tensor([ids]), use_cache=False).logits[0, -1].softmax(-1)
        ids.append(int(chance.argmax()))
        chances.append(float(chance[ids[-1]]))
    return ids[len(tokens) :], chances


@cache
def _reference(directory: Path) -> Any:
    return load_reference(directory)


def assert_continued(watched: Watched, directory: Path) -> None:
    """All that was proposed is what the model in `directory` goes on with."""
    for asked in watched.asked:
        ids, chances = continued(directory, tuple(asked.tokens), len(asked.proposal.ids))
        assert asked.proposal.ids == ids, asked
        assert asked.proposal.chances == pytest.approx(chances, rel=1e-3)


@pytest.fixture(scope="module")
def loaded(tiny: Callable[[str], Path], small: Path, compile_cache: None) -> Engine:
    return drafting(tiny("llama2_gqa"), small, max_batch_total_tokens=256)


@pytest.fixture
def engine(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """It compiles nothing, whatever a test asks of it."""
    monkeypatch.setattr(loaded, "compiles_at_start", COMPILES.unexpected)
    yield loaded
    assert loaded.stats().compiles_after_warmup == 0


def test_what_is_proposed_is_what_transformers_goes_on_with(engine: Engine, small: Path) -> None:
    """Over prompts in one part and in several, prefixes that are shared, and the ends of pages."""
    shared = prompt(90, seed=9)
    requests = [
        *REQUESTS,
        *(ask(10 + number, shared[: 70 + number], max_tokens=20, temperature=number / 2) for number in range(3)),
        *(ask(20 + number, prompt(13 + number), max_tokens=9) for number in range(4)),
    ]
    expected, watched = plain(engine, requests), Watched(engine.runner.draft)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)
    assert len(watched.asked) > 60
    assert max(len(asked.proposal.ids) for asked in watched.asked) == GUESSES
    assert_continued(watched, small)


def test_a_request_that_was_preempted_is_read_again(engine: Engine, small: Path) -> None:
    requests = [ask(number, prompt(40, seed=number), max_tokens=60) for number in range(4)]
    expected, watched, before = plain(engine, requests), Watched(engine.runner.draft), engine.stats().preemptions
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)
    assert engine.stats().preemptions > before
    assert_continued(watched, small)


def test_acceptance_of_every_pattern_changes_no_answer(engine: Engine) -> None:
    requests = [*REQUESTS, *MANNERS]
    forged = Forged(engine.runner.draft, answers=plain(engine, requests))
    with speculator(engine, eager(engine, forged)) as drafts:
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], forged.answers[request.id], request)
    assert min(drafts.accepted) > 5 and drafts.draft_tokens > 2 * sum(drafts.accepted) / 3


def test_by_the_policy_that_serves_answers_are_the_same(engine: Engine) -> None:
    requests = [*REQUESTS, *MANNERS]
    expected = plain(engine, requests)
    answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)


class Poisoned(Watched):
    """Of the draft model's caches all is NaN but what it has read or guessed of a request: the sink, pages that nobody
    holds, and the rest of those that are held.
    """

    engine: Engine

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        draft, pool = self.engine.runner.draft, self.engine.scheduler.pool
        assert draft is not None
        unread = np.ones((pool.total, pool.page_size), bool)
        for sequence in self.engine.scheduler.batch.running:
            if (reading := draft.readings.get(sequence)) is None or reading.tables is not sequence.tables:
                continue
            places = np.arange(reading.read + len(reading.guessed))
            pages = np.array(sequence.tables[0].pages)[places // pool.page_size]
            unread[pages, places % pool.page_size] = False

        def poison(cache: jax.Array) -> jax.Array:
            values = np.array(cache)
            values[:, unread] = np.nan
            return jax.device_put(values, cache.sharding)

        draft.state.draft_layers = jax.tree.map(poison, draft.state.draft_layers)
        return super().catch_up(sequences)


def test_what_nobody_has_read_changes_no_guess(engine: Engine, small: Path) -> None:
    poisoned = Poisoned(engine.runner.draft)
    poisoned.engine = engine
    with speculator(engine, eager(engine, poisoned)):
        serve(engine, REQUESTS)
    assert len(poisoned.asked) > 30
    assert_continued(poisoned, small)


@pytest.mark.parametrize("guesses", [1, 9])
def test_a_model_that_drafts_for_itself_is_always_right(
    tiny: Callable[[str], Path], compile_cache: None, guesses: int
) -> None:
    directory, count = tiny("llama2_gqa"), 30
    engine = drafting(directory, directory, guesses, max_batch_size=1)
    steps = engine.stats().steps
    with speculator(engine, eager(engine, engine.runner.draft)) as drafts:
        serve(engine, [ask(0, prompt(20), max_tokens=count)])
    assert sum(drafts.accepted) == drafts.draft_tokens > 0
    assert engine.stats().steps - steps <= 2 + math.ceil((count - 2) / (guesses + 1))
    assert engine.description.max_draft_tokens == guesses


@pytest.mark.parametrize("name", ["gemma2", "qwen3_moe", "gpt2", "bloom"])
def test_drafts_of_other_families(
    tiny: Callable[[str], Path], zoo: Callable[[str], Path], compile_cache: None, name: str
) -> None:
    engine = drafting(tiny("llama2_gqa"), zoo(name))
    watched, expected = Watched(engine.runner.draft), plain(engine, REQUESTS[:4])
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, REQUESTS[:4])
    assert {number: answer.ids for number, answer in answers.items()} == {n: each.ids for n, each in expected.items()}
    assert len(watched.asked) > 10
    assert_continued(watched, zoo(name))


def test_beside_a_cache_of_8_bits_it_keeps_its_own_type(
    tiny: Callable[[str], Path], small: Path, compile_cache: None
) -> None:
    engine = drafting(tiny("llama2_gqa"), small, dtype="bfloat16", kv_cache_dtype="fp8", max_batch_size=2)
    assert engine.runner.draft is not None
    assert {each.dtype.itemsize for each in jax.tree.leaves(engine.runner.state.layers)} == {1}
    assert {each.dtype.itemsize for each in jax.tree.leaves(engine.runner.state.draft_layers)} == {2}
    expected, watched = plain(engine, REQUESTS[:2]), Watched(engine.runner.draft)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, REQUESTS[:2])
    assert [answer.ids for answer in answers.values()] == [answer.ids for answer in expected.values()]
    assert len(watched.asked) > 5
