"""A prompt's logits are transformers': of every position or the last, in chunks, beside texts, after failures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from jaxengine.request.sequence import LOGITS, Logits, Request
from jaxengine.rpc.limits import MAX_LOGITS_BYTES
from tests.jaxengine.engines import (
    Answer,
    Answers,
    EngineOf,
    Named,
    alone,
    ask,
    fail_once,
    finish,
    load,
    logprob_rows,
    prompt,
    serve,
)
from tests.tiny import VOCAB, reference_logits, write_tiny
from tests.tiny_adapter import adapted

MODEL = "llama2_gqa"
LENGTHS = (1, 2, 15, 16, 17, 32, 40, 64, 65, 100, 116)  # steps hold 64 tokens, pages 16


def logits(answer: Answer) -> np.ndarray:
    assert answer.finish is FinishReason.LENGTH, answer.error
    return np.frombuffer(answer.logits, "<f4").reshape(-1, VOCAB)


def expected(directory: Path, ids: list[int], wanted: Logits) -> np.ndarray:
    reference = reference_logits(directory, ids)
    return reference if wanted == "all" else reference[-1:]


def assert_equal(answer: Answer, reference: np.ndarray) -> None:
    ours = logits(answer)
    assert ours.shape == reference.shape
    assert np.abs(ours - reference).max() < 1e-4 * max(1.0, np.abs(reference).max())


def assert_as_reference(answers: Answers, directory: Path, requests: list[Request]) -> None:
    for each in requests:
        assert each.logits is not None
        assert_equal(answers[each.id], expected(directory, list(each.prompt), each.logits))


@pytest.fixture(params=LOGITS)
def wanted(request: pytest.FixtureRequest) -> Logits:
    return request.param  # type: ignore[no-any-return]


def test_prompts_of_every_length_have_their_logits_beside_texts(
    engine_of: EngineOf, tiny: Callable[[str], Path]
) -> None:
    engine = engine_of(MODEL)
    prompts = [prompt(length, seed=length) for length in LENGTHS]
    every = [ask(number, ids, logits="all", max_tokens=1) for number, ids in enumerate(prompts)]
    last = [ask(50 + number, ids, logits="last", max_tokens=1) for number, ids in enumerate(prompts)]
    vectors = [ask(100 + number, ids, pooling="last", max_tokens=1) for number, ids in enumerate(prompts)]
    texts = [ask(150 + number, ids, max_tokens=12) for number, ids in enumerate(prompts)]
    lone = {each.id: alone(engine, each) for each in (*vectors, *texts)}
    before = engine.stats().generated_tokens
    answers = serve(engine, [each for group in zip(every, last, vectors, texts, strict=True) for each in group])
    assert_as_reference(answers, tiny(MODEL), [*every, *last])
    assert {each.id: answers[each.id].ids for each in texts} == {each.id: lone[each.id].ids for each in texts}
    assert not any(answers[each.id].logits for each in (*texts, *vectors))
    for each in vectors:
        ours, theirs = (np.frombuffer(answer.embedding, "<f4") for answer in (answers[each.id], lone[each.id]))
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert engine.stats().generated_tokens - before == 12 * len(texts)
    assert engine.stats().compiles_after_warmup == 0


def test_no_token_is_sampled_where_nobody_wants_one(
    engine_of: EngineOf, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no step knows: one more program makes the logits, of 32 positions at a time."""
    engine = engine_of(MODEL)
    named = Named(engine.runner.executables)
    monkeypatch.setattr(engine.runner.state, "executables", named)
    requests = [ask(1, prompt(50), logits="all", max_tokens=1), ask(2, [1], logits="last", max_tokens=1)]
    assert_as_reference(serve(engine, requests), tiny(MODEL), requests)
    names = [name if isinstance(name, str) else name[0] for name in named.called]
    assert [name for name in names if name not in ("write_page_table", "fill_slot")] == ["backbone", *["logits"] * 2]


def test_a_cached_prefix_serves_the_last_position_and_all_are_computed(
    engine_of: EngineOf, tiny: Callable[[str], Path], wanted: Logits
) -> None:
    engine = engine_of(MODEL)
    ids = prompt(90, seed=7)
    serve(engine, [ask(1, ids, max_tokens=2)])
    request = ask(2, ids, logits=wanted, max_tokens=1)
    answers = serve(engine, [request])
    assert answers[2].cached_tokens == (80 if wanted == "last" else 0)
    assert_as_reference(answers, tiny(MODEL), [request])


@pytest.mark.parametrize("speculate", [0, 3])
def test_logits_outlive_preemptions_and_a_step_that_fails(
    tiny: Callable[[str], Path], compile_cache: None, wanted: Logits, speculate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(
        tiny(MODEL), max_batch_total_tokens=192, max_batch_prefill_tokens=32, speculate=speculate, every_bucket=True
    )
    texts = [ask(100 + number, prompt(30, seed=50 + number), max_tokens=60) for number in range(3)]
    lone = {each.id: alone(engine, each).ids for each in texts}
    requests = [ask(number, prompt(110, seed=number), logits=wanted, max_tokens=1) for number in range(3)]
    fail_once(engine, monkeypatch, at=4)
    answers = serve(engine, [*texts, *requests])
    assert engine.stats().step_failures == 1 and engine.stats().preemptions > 0
    assert_as_reference(answers, tiny(MODEL), requests)
    assert {each.id: answers[each.id].ids for each in texts} == lone
    assert engine.stats().compiles_after_warmup == 0


def test_logits_that_come_again_take_the_place_of_the_same(engine_of: EngineOf, tiny: Callable[[str], Path]) -> None:
    """The cache is lost in the middle of a prompt of 116 tokens: its first chunk is computed once more."""
    engine, ids = engine_of(MODEL), prompt(116, seed=3)
    engine.submit(request := ask(1, ids, logits="all", max_tokens=1))
    while (sequence := engine.requests.live.get(1)) is None or sequence.logits is None:
        engine.step()
    sequence.logits.fill(np.nan)
    engine._start_over()
    assert_as_reference(finish(engine, {1: Answer()}), tiny(MODEL), [request])


@pytest.mark.parametrize("name", ["bloom", "gemma2", "mixtral", "gpt2", "cohere", "opt_350m", "mamba", "phi3_longrope"])
@pytest.mark.slow
def test_other_families(zoo: Callable[[str], Path], compile_cache: None, name: str) -> None:
    """ALiBi, softcaps, experts, tied heads and others, a scale, a projection before the head, a state space."""
    engine = load(zoo(name))
    prompts = [prompt(length, seed=length) for length in (1, 20, 70, 90)]
    requests = [ask(2 * n + k, ids, logits=LOGITS[k], max_tokens=1) for n, ids in enumerate(prompts) for k in (0, 1)]
    assert_as_reference(serve(engine, requests), zoo(name), requests)


def test_a_tied_head(engine_of: EngineOf, tiny: Callable[[str], Path], wanted: Logits) -> None:
    requests = [ask(1, prompt(70), logits=wanted, max_tokens=1)]
    assert_as_reference(serve(engine_of("llama3"), requests), tiny("llama3"), requests)


def test_the_padding_of_a_vocabulary_has_none(tmp_path: Path, compile_cache: None, wanted: Logits) -> None:
    directory = write_tiny(tmp_path, "llama", vocab_size=VOCAB + 64)
    ids = prompt(40)
    answer = serve(load(directory), [ask(1, ids, logits=wanted, max_tokens=1)])[1]
    assert_equal(answer, expected(directory, ids, wanted)[:, :VOCAB])


@pytest.mark.slow
def test_with_adapters(tiny: Callable[[str], Path], tmp_path: Path, compile_cache: None, wanted: Logits) -> None:
    """Each request has the logits of its adapter merged, beside one of the model itself."""
    merged = []
    for name, seed in (("one", 1), ("two", 2)):
        made = adapted(tiny(MODEL), seed=seed)
        made.save_pretrained(tmp_path / name)
        made.merge_and_unload().save_pretrained(tmp_path / f"{name}-merged")
        merged.append(tmp_path / f"{name}-merged")
    engine = load(tiny(MODEL), adapters={name: tmp_path / name for name in ("one", "two")}, enable_lora=True)
    ids = prompt(70)
    wants = {"logits": wanted, "max_tokens": 1}
    requests = [ask(n, ids, adapter=name, **wants) for n, name in enumerate(("one", "two", ""))]  # type: ignore[arg-type]
    answers = serve(engine, requests)
    for number, directory in enumerate((*merged, tiny(MODEL))):
        assert_equal(answers[number], expected(directory, ids, wanted))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_what_a_token_is_sampled_from_before_penalties_and_temperature(
    tiny: Callable[[str], Path], compile_cache: None, dtype: str
) -> None:
    engine, ids = load(tiny(MODEL), dtype=dtype), prompt(50)
    ways = {"temperature": 0.3, "repetition_penalty": 1.5, "logit_bias": {7: 9.0}, "max_tokens": 1}
    answers = serve(
        engine,
        [
            ask(1, ids, logits="all", **ways),  # type: ignore[arg-type]
            ask(2, ids, logits="last", **ways),  # type: ignore[arg-type]
            ask(3, ids, logprobs=VOCAB, max_tokens=1),
        ],
    )
    sampled = logprob_rows(answers[3].tokens)[0]
    for number in (1, 2):
        ours = logits(answers[number])[-1].astype(np.float64)
        np.testing.assert_allclose(ours - np.log(np.exp(ours).sum()), sampled, atol=1e-3)


@pytest.fixture
def broken(tiny: Callable[[str], Path], tmp_path: Path, compile_cache: None) -> Iterator[Engine]:
    """The token 9 has an embedding that is too large for a float32: what comes behind it is not finite."""
    directory = write_tiny(tmp_path, MODEL)
    stored = load_file(directory / "model.safetensors")
    stored["model.embed_tokens.weight"][9] = np.inf
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    yield load(directory, max_batch_prefill_tokens=32)


def test_logits_that_are_not_finite_are_an_error(broken: Engine, wanted: Logits) -> None:
    """Whether tokens are sampled beside, and in whatever chunk they are."""
    good, bad = [5] * 70, [5] * 20 + [9] + [5] * 49
    wants = {"logits": wanted, "max_tokens": 1}
    for others in ([], [ask(2, good, max_tokens=3)]):
        answers = serve(broken, [ask(0, bad, **wants), ask(1, good, **wants), *others])  # type: ignore[arg-type]
        assert answers[0].finish is FinishReason.ERROR and "not finite" in answers[0].error
        assert np.isfinite(logits(answers[1])).all()


def test_a_request_that_is_cancelled_leaves_nothing(engine_of: EngineOf, wanted: Logits) -> None:
    engine = engine_of(MODEL)
    engine.submit(ask(1, prompt(116, seed=9), logits=wanted, max_tokens=1))
    engine.step()
    engine.cancel(1)
    answer = finish(engine, {1: Answer()})[1]
    assert answer.finish is FinishReason.CANCELLED and not answer.logits


@pytest.mark.parametrize(
    "asked, problem",
    [
        ({"max_tokens": 2}, "logits does not go with max_tokens above 1"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"grammar": Grammar("regex", "a+")}, "a grammar"),
        ({"reasoning": Reasoning((5,), (6,))}, "reasoning"),
        ({"beams": BeamSearch(width=2)}, "beam search"),
        ({"pooling": "last"}, "pooling"),
    ],
)
def test_what_does_not_go_with_logits_is_refused(engine_of: EngineOf, asked: dict[str, object], problem: str) -> None:
    engine = engine_of(MODEL)
    assert engine.description.logits
    with pytest.raises(ValueError, match=problem):
        engine.submit(ask(1, prompt(5), **{"logits": "all", "max_tokens": 1, **asked}))  # type: ignore[arg-type]


def test_an_answer_has_64_mib_at_most(engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LOGITS_BYTES == 64 << 20
    monkeypatch.setattr("jaxengine.request.checks.MAX_LOGITS_BYTES", 4 * 10 * VOCAB)
    engine, most = engine_of(MODEL), ask(1, prompt(10), logits="all", max_tokens=1)
    assert len(serve(engine, [most])[1].logits) == 4 * 10 * VOCAB
    refused = f"logits 'all' of 11 positions and {VOCAB} ids take {4 * 11 * VOCAB} bytes, more than {4 * 10 * VOCAB}"
    with pytest.raises(ValueError, match=refused):
        engine.submit(ask(2, prompt(11), logits="all", max_tokens=1))
    serve(engine, [ask(3, prompt(90), logits="last", max_tokens=1)])


@pytest.mark.slow
def test_a_model_with_an_encoder_has_none(seq2seq: Callable[[str], Path], compile_cache: None, wanted: Logits) -> None:
    engine = load(seq2seq("t5"))
    assert not engine.description.logits
    assert "logits" not in engine.runner.executables
    with pytest.raises(ValueError, match="an encoder reads"):
        engine.submit(ask(1, prompt(5), logits=wanted, max_tokens=1))
