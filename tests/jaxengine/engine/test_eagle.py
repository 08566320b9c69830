"""EAGLE's layers guess what PyTorch guesses of the same files, and whatever they guess changes no answer."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from convert.mapping.composition import SourceWithSpec
from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.table import EngineOptions
from jaxengine.request.sequence import Sequence
from jaxengine.startup.build import load_engine
from tests.eagle import Kind, TinyEagle, reference
from tests.jaxengine.drafters import Forged, Watched, eager
from tests.jaxengine.drafting import MANNERS, assert_same, plain, speculator
from tests.jaxengine.engines import ask, prompt, serve
from tests.jaxengine.shared_executables import shared_executables
from tests.tiny import BASE, TINY, VOCAB

pytestmark = pytest.mark.slow

GUESSES = 3
HIDDEN = BASE["hidden_size"]
EAGLE3 = Kind((0, 2), own_head=True, draft_vocab=200, norm_before_residual=True)
KINDS = {  # how many tokens they guess, and for which model
    "eagle": (Kind(), 1, "llama2_gqa"),
    "eagle_of_two_layers": (Kind(layers=2, fc_bias=True, own_head=True), GUESSES, "llama_bias_hd"),
    "eagle3_normed": (Kind((1,), own_embedding=True, norms="joined", norm_output=True), 9, "llama2_gqa"),
    "eagle3_normed_each": (Kind((0, 1, 2), own_head=True, norms="each", kv_heads=4, layers=2), GUESSES, "qwen3_moe"),
    "eagle3_with_a_window": (Kind((0, 2), own_head=True, window=8), GUESSES, "llama3"),
}
REQUESTS = [
    ask(number, prompt(3 + 7 * number, seed=number), max_tokens=12 + number, temperature=number % 3 / 2)
    for number in range(6)
]


def drafting(directory: Path, drafter: Path, guesses: int = GUESSES, tokens: int = VOCAB, **options: object) -> Engine:
    """Only the first `tokens` ids of the model are tokens."""
    model = open_model(str(directory), drafter=str(drafter))
    spec = model.source.spec
    padded = replace(spec, head=replace(spec.head, tokens=tokens))
    model = replace(model, source=SourceWithSpec(model.source, padded))
    chosen = {"max_batch_size": 2, "max_batch_prefill_tokens": 32, "speculate": guesses, **options}
    with shared_executables():
        engine = load_engine(model, EngineOptions(**chosen))  # type: ignore[arg-type]
    engine.finish_compiling()
    return engine


@cache
def _reference(directory: Path) -> Any:
    return reference(directory)


def assert_guessed(watched: Watched, made: TinyEagle, directory: Path, tokens: int = VOCAB) -> None:
    """All that was proposed is what PyTorch guesses."""
    for asked in watched.asked:
        ids, chances = made.guesses(_reference(directory), asked.tokens, len(asked.proposal.ids), tokens)
        assert asked.proposal.ids == ids, asked
        assert asked.proposal.chances == pytest.approx(chances, rel=2e-3)


def assert_answers_are_the_same(engine: Engine, watched: Watched, requests: Items[Any]) -> None:
    expected = plain(engine, requests)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_proposed_is_what_pytorch_guesses(
    tiny: Callable[[str], Path], zoo: Callable[[str], Path], compile_cache: None, tmp_path: Path, name: str
) -> None:
    """Over prompts in one part and in several, prefixes that are shared, and the ends of pages."""
    kind, guesses, model = KINDS[name]
    made, directory = TinyEagle(kind, HIDDEN, VOCAB), (tiny if model in TINY else zoo)(model)
    engine = drafting(directory, made.write(tmp_path / "eagle"), guesses)
    compiles = COMPILES.unexpected
    shared = prompt(90, seed=9)
    requests = [
        *REQUESTS,
        *(ask(10 + number, shared[: 70 + number], max_tokens=20, temperature=number / 2) for number in range(3)),
        *(ask(20 + number, prompt(13 + number), max_tokens=9) for number in range(4)),
    ]
    watched = Watched(engine.runner.draft)
    assert_answers_are_the_same(engine, watched, requests)
    assert len(watched.asked) > 60 and COMPILES.unexpected == compiles
    assert max(len(asked.proposal.ids) for asked in watched.asked) == guesses == engine.description.max_draft_tokens
    assert_guessed(watched, made, directory)


@pytest.fixture(scope="module")
def made() -> TinyEagle:
    return TinyEagle(EAGLE3, HIDDEN, VOCAB)


@pytest.fixture(scope="module")
def loaded(
    tiny: Callable[[str], Path], made: TinyEagle, compile_cache: None, tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    directory = made.write(tmp_path_factory.mktemp("eagle"))
    return drafting(tiny("llama2_gqa"), directory, max_batch_total_tokens=160)


@pytest.fixture
def engine(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """It compiles nothing, whatever a test asks of it."""
    monkeypatch.setattr(loaded, "compiles_at_start", COMPILES.unexpected)
    yield loaded
    assert loaded.stats().compiles_after_warmup == 0


def test_a_request_that_was_preempted_is_read_again(
    engine: Engine, made: TinyEagle, tiny: Callable[[str], Path]
) -> None:
    requests = [ask(number, prompt(40, seed=number), max_tokens=60) for number in range(4)]
    watched, before = Watched(engine.runner.draft), engine.stats().preemptions
    assert_answers_are_the_same(engine, watched, requests)
    assert engine.stats().preemptions > before
    assert_guessed(watched, made, tiny("llama2_gqa"))


def test_acceptance_of_every_pattern_changes_no_answer_and_no_later_guess(
    engine: Engine, made: TinyEagle, tiny: Callable[[str], Path]
) -> None:
    requests = [*REQUESTS, *MANNERS]
    forged = Forged(engine.runner.draft, answers=plain(engine, requests))
    with speculator(engine, eager(engine, forged)) as drafts:
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], forged.answers[request.id], request)
    assert min(drafts.accepted) > 5 and drafts.draft_tokens > 2 * sum(drafts.accepted) / 3
    assert_guessed(forged, made, tiny("llama2_gqa"))


def test_requests_that_share_pages_and_not_what_is_behind_them_get_tokens_all_the_same(engine: Engine) -> None:
    """What is read at the end of a page they overwrite for each other, and that is all."""
    shared = prompt(48, seed=8)
    requests = [ask(number, [*shared, 100 + number, 7], max_tokens=20) for number in range(4)]
    watched = Watched(engine.runner.draft)
    assert_answers_are_the_same(engine, watched, requests)
    assert {len(asked.proposal.ids) for asked in watched.asked} <= {*range(1, GUESSES + 1)} and len(watched.asked) > 30


def test_by_the_policy_that_serves_answers_are_the_same(engine: Engine) -> None:
    requests = [*REQUESTS, *MANNERS]
    expected = plain(engine, requests)
    answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)


class Poisoned(Watched):
    """All is NaN but what was read or left of a request: of the layers' caches and of the model's features."""

    engine: Engine

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        draft, pool, runner = self.engine.runner.draft, self.engine.scheduler.pool, self.engine.runner
        assert draft is not None
        unread, unknown = (np.ones((pool.total, pool.page_size), bool) for _ in range(2))
        for sequence in self.engine.scheduler.batch.running:
            self._except(unknown, sequence, len(sequence.tokens) - 1)
            if (reading := draft.readings.get(sequence)) is not None and reading.tables is sequence.tables:
                self._except(unread, sequence, reading.read)

        def poisoned(cache: jax.Array, where: np.ndarray) -> jax.Array:
            values = np.array(cache)
            values[:, where] = np.nan
            return jax.device_put(values, cache.sharding)

        draft.state.draft_layers = jax.tree.map(lambda cache: poisoned(cache, unread), draft.state.draft_layers)
        *caches, features = runner.state.layers
        runner.state.layers = (*caches, poisoned(features, unknown))
        return super().catch_up(sequences)

    def _except(self, where: np.ndarray, sequence: Sequence, count: int) -> None:
        """Not the first `count` positions of `sequence`."""
        places, size = np.arange(count), where.shape[1]
        where[np.array(sequence.tables[0].pages)[places // size], places % size] = False


def test_what_nobody_has_read_changes_no_guess(engine: Engine, made: TinyEagle, tiny: Callable[[str], Path]) -> None:
    """Of prompts that no prefix was kept of, since nobody runs what is kept."""
    poisoned = Poisoned(engine.runner.draft)
    poisoned.engine = engine
    requests = [ask(number, prompt(3 + 7 * number, seed=50 + number), max_tokens=20) for number in range(4)]
    with speculator(engine, eager(engine, poisoned)):
        serve(engine, requests)
    assert len(poisoned.asked) > 30
    assert_guessed(poisoned, made, tiny("llama2_gqa"))


@pytest.mark.parametrize("own_ids", [True, False])
def test_no_id_is_guessed_that_is_no_token(
    tiny: Callable[[str], Path], compile_cache: None, tmp_path: Path, own_ids: bool
) -> None:
    """Of the model's 320 ids 200 are, which is fewer than a random head guesses."""
    made = TinyEagle(replace(EAGLE3, draft_vocab=300 if own_ids else None), HIDDEN, VOCAB)
    engine = drafting(tiny("llama2_gqa"), made.write(tmp_path / "eagle"), tokens=200)
    watched = Watched(engine.runner.draft)
    requests = [ask(number, [*range(10 + number, 40)], max_tokens=12) for number in range(2)]
    assert_answers_are_the_same(engine, watched, requests)
    assert len(watched.asked) > 10 and max(max(asked.proposal.ids) for asked in watched.asked) < 200
    assert_guessed(watched, made, tiny("llama2_gqa"), 200)


def test_beside_a_cache_of_8_bits_features_keep_their_own_type(
    tiny: Callable[[str], Path], made: TinyEagle, compile_cache: None, tmp_path: Path
) -> None:
    options = {"max_batch_size": 1, "dtype": "bfloat16", "kv_cache_dtype": "fp8"}
    engine = drafting(tiny("llama2_gqa"), made.write(tmp_path / "eagle"), **options)
    *caches, features = engine.runner.state.layers
    assert {each.dtype.itemsize for each in caches} == {1}
    assert features.dtype.itemsize == 2
    expected, watched = plain(engine, REQUESTS[:2]), Watched(engine.runner.draft)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, REQUESTS[:2])
    assert [answer.ids for answer in answers.values()] == [answer.ids for answer in expected.values()]
    model = _reference(tiny("llama2_gqa"))
    first = [asked.proposal.ids[0] == made.guesses(model, asked.tokens, 1)[0][0] for asked in watched.asked]
    assert len(first) > 5 and sum(first) > 0.7 * len(first)  # the others were too close for 16 bits
