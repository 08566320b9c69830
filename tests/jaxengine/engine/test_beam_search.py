"""Beam searches of an engine are those of transformers: the same answers with the same scores, whatever else runs."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.executor.compiler import COPIES
from jaxengine.grammar.grammar import Grammar
from jaxengine.request.beam_search import BeamSearch, EarlyStopping
from jaxengine.request.checks import check_request
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.samplers import Samplers
from tests.families.seq2seq import load_seq2seq
from tests.jaxengine.beam_references import Found, assert_found, beams, searched
from tests.jaxengine.drafting import drafting, plain
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.tiny import load_reference
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
SIZES = {"max_batch_size": 8, "max_batch_prefill_tokens": 64}
STOPPING: tuple[EarlyStopping, ...] = (True, False, "never")
# Each penalty of ours and the processor of transformers that does the same.
PENALTIES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"min_tokens": 4}, {"min_new_tokens": 4}),
    ({"samplers": Samplers(no_repeat_ngram_size=2)}, {"no_repeat_ngram_size": 2}),
    ({"bad_words": ((9,), (17, 30))}, {"bad_words_ids": [[9], [17, 30]]}),
    ({"logit_bias": {5: 2.5, 40: -3.0}}, {"sequence_bias": [[[5], 2.5], [[40], -3.0]]}),
)


@pytest.fixture(scope="module")
def llama(tiny: Checkpoints, compile_cache: None) -> Engine:
    return load(tiny("llama2_gqa"), **SIZES)


@pytest.fixture(scope="module")
def reference(tiny: Checkpoints) -> object:
    return load_reference(tiny("llama2_gqa"))


@contextmanager
def preempting(engine: Engine, share: float) -> Iterator[None]:
    """Before such a share of steps a running request loses its pages, as if others needed them."""
    rng, scheduler, plan = random.Random(0), engine.scheduler, engine.scheduler.plan

    def after_preemption(*only: Any) -> Plan:
        if scheduler.batch.running and not scheduler.batch.step_in_flight and rng.random() < share:
            scheduler._preempt(rng.choice(scheduler.batch.running))
        return plan(*only)

    scheduler.plan = after_preemption  # type: ignore[method-assign]
    try:
        yield
    finally:
        del scheduler.plan


@pytest.mark.parametrize("early_stopping", STOPPING)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5, 2.0])
def test_answers_and_scores_are_those_of_transformers(
    length_penalty: float, early_stopping: EarlyStopping, llama: Engine, reference: object
) -> None:
    rng = random.Random(f"{length_penalty} {early_stopping}")
    for case in range(8):
        search = BeamSearch(
            width=rng.randint(2, 6),
            answers=rng.randint(0, 2),
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        ends = rng.sample(range(4, 320), rng.choice([1, 3, 30, 60]))
        ours, theirs = PENALTIES[case % len(PENALTIES)]
        ids, max_tokens = prompt(rng.randint(1, 60), seed=case), rng.randint(ours.get("min_tokens", 1), 20)
        expected = searched(reference, ids, search, max_tokens, ends, **theirs)
        assert_found(serve(llama, [beams(case, ids, search, ends, max_tokens=max_tokens, **ours)])[case], expected)
    assert llama.stats().compiles_after_warmup == 0


def test_searches_share_steps_slots_and_pages_with_others(tiny: Checkpoints, compile_cache: None) -> None:
    """More beams than slots, so some wait. Any of them may have to give up its pages, and computes them again."""
    engine = load(tiny("llama2_gqa"), max_total_tokens=96, max_batch_total_tokens=24 * 16, **SIZES)
    model = load_reference(tiny("llama2_gqa"))
    ends, expected = [7, 80, 81, 82], dict[int, Found]()
    requests = [ask(20 + n, prompt(9 + n, seed=n), max_tokens=80) for n in range(3)]
    plain = {request.id: serve(engine, [request])[request.id].ids for request in requests}
    for number, (width, length) in enumerate([(4, 40), (3, 17), (4, 33), (2, 3), (4, 40)]):
        search, ids = BeamSearch(width=width, early_stopping="never"), prompt(length, seed=length)
        expected[number] = searched(model, ids, search, 50, ends)
        requests.insert(2 * number, beams(number, ids, search, ends, max_tokens=50))
    for preempted in (0.0, 0.1):
        with preempting(engine, preempted):
            answers = serve(engine, requests)
        for number, found in expected.items():
            assert_found(answers[number], found)
        assert all(answers[number].ids == ids for number, ids in plain.items())
    assert engine.stats().preemptions > 5 and engine.stats().compiles_after_warmup == 0


@pytest.mark.parametrize("name", ["bloom", "gemma3_text", "gpt2", "mixtral", "mamba", "phi3_longrope", "qwen3_5"])
def test_every_kind_of_decoder_forks(name: str, zoo: Checkpoints, compile_cache: None) -> None:
    engine, model = load(zoo(name), **SIZES), load_reference(zoo(name))
    ends = list(range(100, 110))
    for number, length in enumerate((5, 21, 37)):
        search, ids = BeamSearch(width=4, early_stopping="never"), prompt(length, seed=length)
        expected = searched(model, ids, search, 24, ends)
        with preempting(engine, 0.05):
            assert_found(serve(engine, [beams(number, ids, search, ends, max_tokens=24)])[number], expected)


@pytest.mark.parametrize("name", ["flan_t5", "bart"])
def test_models_with_an_encoder(name: str, seq2seq: Checkpoints, compile_cache: None) -> None:
    """The beams share the encoder's pages, and are preempted with them."""
    engine = load(seq2seq(name), max_total_tokens=96, **SIZES)
    model, ends, expected, requests = load_seq2seq(seq2seq(name)), list(range(100, 104)), dict[int, Found](), []
    for number, (width, length) in enumerate([(4, 20), (3, 37), (4, 5)]):
        search, ids = BeamSearch(width=width, length_penalty=2.0, early_stopping=True), prompt(length, seed=length)
        size = number % 3  # of n-grams that may not come twice, as the BARTs that summarise ask for
        asked = {"samplers": Samplers(no_repeat_ngram_size=size)}
        expected[number] = searched(model, ids, search, 24, ends, no_repeat_ngram_size=size)
        requests.append(beams(number, ids, search, ends, max_tokens=24, **asked))
    with preempting(engine, 0.1):
        answers = serve(engine, requests)
    for number, found in expected.items():
        assert_found(answers[number], found)
    assert engine.stats().preemptions > 1


def test_a_search_of_one_beam_is_greedy(llama: Engine) -> None:
    ids = prompt(20)
    greedy = serve(llama, [ask(1, ids, max_tokens=12, logprobs=2)])[1]
    answer = serve(llama, [beams(2, ids, BeamSearch(width=1), [], max_tokens=12, logprobs=2)])[2]
    (beam,) = answer.beams
    assert [token.id for token in beam.tokens] == greedy.ids and beam.finish is FinishReason.LENGTH
    assert [token.top[0][0] for token in beam.tokens] == greedy.ids
    assert beam.score == pytest.approx(sum(token.logprob for token in greedy.tokens) / 12, rel=1e-5)
    assert all(len(token.top) == 2 for token in beam.tokens)


def test_answers_end_for_their_reasons(llama: Engine) -> None:
    answer = serve(llama, [beams(1, prompt(20), BeamSearch(width=4), range(4, 60), max_tokens=5)])[1]
    for beam in answer.beams:
        ended = beam.tokens[-1].id in range(4, 60)
        assert beam.finish is (FinishReason.LENGTH if len(beam.tokens) == 5 else FinishReason.STOP_TOKEN)
        assert ended or beam.finish is FinishReason.LENGTH
    assert answer.cached_tokens == 16 and not answer.tokens


def test_adapters_answer_searches(tiny: Checkpoints, tmp_path: Path, compile_cache: None) -> None:
    """Searches of the model and of its adapter, in the same steps."""
    wrapped = adapted(tiny("llama2_gqa"))
    wrapped.save_pretrained(tmp_path)
    engine = load(tiny("llama2_gqa"), adapters={"one": tmp_path}, **SIZES)
    models = {"": load_reference(tiny("llama2_gqa")), "one": wrapped.merge_and_unload()}
    search, ids = BeamSearch(width=3), prompt(20)
    asked = [beams(n, ids, search, [9], max_tokens=20, adapter=name) for n, name in enumerate(models)]
    answers = serve(engine, asked)
    for number, model in enumerate(models.values()):
        assert_found(answers[number], searched(model, ids, search, 20, [9]))


def test_a_search_beside_requests_whose_drafts_are_verified(tiny: Checkpoints, compile_cache: None) -> None:
    """They share steps; beams have no drafts."""
    engine = load(tiny("llama2_gqa"), every_bucket=True, speculate=3, **{**SIZES, "max_batch_size": 4})
    requests = [ask(n, prompt(10 + n, seed=n), max_tokens=60) for n in range(2)]
    expected = plain(engine, requests)
    search, ids = BeamSearch(width=2, early_stopping="never"), prompt(20)
    with drafting(engine, expected, kinds=("right", "turning"), share=1.0, waiting=1.0) as drafts:
        answers = serve(engine, [*requests, beams(9, ids, search, [9], max_tokens=30)])
    assert all(answers[request.id].ids == expected[request.id].ids for request in requests)
    assert_found(answers[9], searched(load_reference(tiny("llama2_gqa")), ids, search, 30, [9]))
    assert sum(drafts.accepted) > 20


def test_a_search_as_wide_as_the_engine_copies_more_pages_than_a_call_does(narrow: Engine, reference: object) -> None:
    search, ids, ends = BeamSearch(width=16, answers=9, early_stopping="never"), prompt(20), [7, 9]
    assert search.width - 1 > COPIES
    for _ in range(2):  # on pages that are new, and on pages with something in them
        answer = serve(narrow, [beams(1, ids, search, ends, max_tokens=24)])[1]
        assert_found(answer, searched(reference, ids, search, 24, ends))


REFUSED = (
    (BeamSearch(width=9), {}, "width 9 is more than max_batch_size 8"),
    (
        BeamSearch(width=8),
        {"max_tokens": 100},
        "8 beams of up to 120 tokens do not fit into max_batch_total_tokens 256",
    ),
    (
        BeamSearch(width=8),
        {"ends": range(4, 40)},
        "width 8 with 36 ids that end a text needs 44 .* max_top_logprobs 40",
    ),
    (
        BeamSearch(width=3),
        {"only_biased": True, "logit_bias": {9: 0.0, 10: 0.0, 11: 0.0}},
        "only 2 ids may go on a text, fewer than beam search's width 3",
    ),
    (
        BeamSearch(width=2),
        {"max_tokens": 1 << 20, "logprobs": 5},
        "2 beams of up to 1048576 tokens with logprobs 5 list more than 8388608 alternatives",
    ),
    (BeamSearch(width=2), {"temperature": 0.5}, "does not go with a temperature"),
    (BeamSearch(width=2), {"prompt_logprobs": True}, "does not go with prompt_logprobs"),
    (BeamSearch(width=2), {"watermark_gamma": 0.5}, "does not go with a watermark"),
    (BeamSearch(width=2), {"grammar": Grammar("regex", "a*")}, "does not go with a grammar"),
)


def test_what_cannot_be_searched_is_refused(llama: Engine) -> None:
    room = {"max_total_tokens": 1 << 21, "max_batch_total_tokens": 256, "max_top_logprobs": 40}
    limits = dataclasses.replace(llama.description, **room)  # type: ignore[arg-type]
    for search, params, message in REFUSED:
        request = beams(1, prompt(20), search, **{"ends": [9], **params})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            check_request(request, limits)
    check_request(beams(1, prompt(20), BeamSearch(width=8), [9], max_tokens=12), limits)
