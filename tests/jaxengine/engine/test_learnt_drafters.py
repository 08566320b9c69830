"""Learnt drafters guess what PyTorch guesses with the same numbers, and whatever they guess changes no answer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from convert.source import open_model
from jaxengine.architecture.drafter import DrafterSpec, Medusa, MLPSpeculator
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import load_engine
from tests.jaxengine.drafters import GUESSES, Forged, RandomDrafter, Watched, eager
from tests.jaxengine.drafting import MANNERS, assert_same, plain, speculator
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.jaxengine.shared_executables import shared_executables
from tests.tiny import BASE, VOCAB

pytestmark = pytest.mark.slow

HIDDEN = BASE["hidden_size"]
medusa, mlp = partial(Medusa, GUESSES, 1, HIDDEN, VOCAB), partial(MLPSpeculator, GUESSES, 24, HIDDEN, VOCAB)
DRAFTERS: dict[str, DrafterSpec] = {
    "medusa": medusa(),
    "medusa_of_the_models_head": medusa(own_heads=False),
    "medusa_of_two_layers": Medusa(GUESSES, 2, HIDDEN, VOCAB),
    "medusa_without_bias": medusa(bias=False),
    "medusa_without_blocks": Medusa(GUESSES, 0, HIDDEN, VOCAB),
    "mlp": mlp(),
    "mlp_tied": mlp(tied=True),
    "mlp_scaled": mlp(scale_input=True),
}
REQUESTS = [
    ask(number, prompt(3 + 7 * number, seed=number), max_tokens=12 + number, temperature=number % 3 / 2)
    for number in range(6)
]


def drafting(directory: Path, spec: DrafterSpec, **options: object) -> Engine:
    model = replace(open_model(str(directory)), drafter=RandomDrafter(spec))
    chosen = {"max_batch_size": 2, "max_batch_prefill_tokens": 32, **options}
    with shared_executables():
        engine = load_engine(model, EngineOptions(**chosen))  # type: ignore[arg-type]
    engine.finish_compiling()
    return engine


@pytest.fixture(params=DRAFTERS)
def spec(request: pytest.FixtureRequest) -> DrafterSpec:
    return DRAFTERS[request.param]


def test_what_is_proposed_is_what_pytorch_computes(
    tiny: Callable[[str], Path], compile_cache: None, spec: DrafterSpec
) -> None:
    directory = tiny("llama2_gqa")
    engine = drafting(directory, spec)
    compiles = COMPILES.unexpected
    expected = plain(engine, REQUESTS)
    watched = Watched(engine.runner)
    with speculator(engine, eager(engine, watched)):
        answers = serve(engine, REQUESTS)
    for request in REQUESTS:
        assert_same(answers[request.id], expected[request.id], request)
    assert len(watched.asked) > 30 and COMPILES.unexpected == compiles
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for asked in watched.asked:
        with torch.no_grad():
            hidden = model.model(torch.tensor([asked.tokens[:-1]])).last_hidden_state[0, -1]
            ids, chances = RandomDrafter(spec).guesses(hidden, asked.tokens[-1], model.lm_head.weight)
        assert asked.proposal.ids == ids
        assert asked.proposal.chances == pytest.approx(chances, rel=1e-3)


@pytest.fixture(scope="module")
def loaded(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    return drafting(tiny("llama2_gqa"), medusa())


@pytest.fixture
def engine(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """It compiles nothing, whatever a test asks of it."""
    monkeypatch.setattr(loaded, "compiles_at_start", COMPILES.unexpected)
    yield loaded
    assert loaded.stats().compiles_after_warmup == 0


def test_acceptance_of_every_pattern_changes_no_answer(engine: Engine) -> None:
    requests = [*REQUESTS, *MANNERS]
    forged = Forged(engine.runner, answers=plain(engine, requests))
    with speculator(engine, eager(engine, forged)) as drafts:
        answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], forged.answers[request.id], request)
    assert min(drafts.accepted) > 5 and drafts.draft_tokens > 2 * sum(drafts.accepted) / 3


def test_by_the_policy_that_serves_answers_are_the_same(engine: Engine) -> None:
    expected = plain(engine, REQUESTS)
    answers = serve(engine, REQUESTS)
    for request in REQUESTS:
        assert_same(answers[request.id], expected[request.id], request)


@pytest.mark.parametrize("spec", [medusa(), mlp()], ids=["medusa", "mlp"])
def test_fewer_guesses_than_there_are_heads(
    tiny: Callable[[str], Path], compile_cache: None, spec: DrafterSpec
) -> None:
    """They are the first of those that all heads guess."""
    guessed = []
    for guesses in (2, GUESSES):
        engine = drafting(tiny("llama2_gqa"), spec, speculate=guesses)
        assert engine.description.max_draft_tokens == guesses
        watched = Watched(engine.runner)
        with speculator(engine, eager(engine, watched)):
            serve(engine, REQUESTS[:1])
        guessed.append(watched.asked[0])
    few, all_of_them = guessed
    assert few.tokens == all_of_them.tokens and few.proposal.ids == all_of_them.proposal.ids[:2]


def test_more_guesses_than_there_are_heads_are_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="speculate 4 is more than the 3 tokens"):
        drafting(tiny("llama2_gqa"), medusa(), speculate=GUESSES + 1)


def test_another_method_than_the_drafters_is_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="method 'mlp_speculator', but the model's drafter is 'medusa'"):
        drafting(tiny("llama2_gqa"), medusa(), speculative_config='{"method": "mlp_speculator"}')
    with pytest.raises(ValueError, match="method 'medusa', but the model brings no drafter"):
        load(tiny("llama2_gqa"), speculative_config='{"method": "medusa"}')


@pytest.mark.parametrize(
    "options", [{"speculate": 0}, {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'}]
)
def test_a_drafter_that_is_not_wanted_is_not_loaded(tiny: Callable[[str], Path], options: dict[str, object]) -> None:
    engine = drafting(tiny("llama2_gqa"), medusa(), **options)
    assert engine.runner.model.drafter is None and not engine.runner.state.slot_state.latest.hidden
