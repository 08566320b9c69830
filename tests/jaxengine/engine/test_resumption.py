"""An answer that another engine began is gone on with as if it had never been interrupted, wherever it was cut.

What is cut is served by an engine that has lost its cache, all cuts of an answer together; and then once more, by one
whose cache holds whatever it may find.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from jaxengine.request.resume import Resume
from jaxengine.request.samplers import Samplers
from jaxengine.request.sequence import Request
from jaxengine.speculation.step_times import StepTimes
from tests.jaxengine.drafters import eager
from tests.jaxengine.drafting import assert_same, speculator
from tests.jaxengine.engine.test_grammars import DATE, PERSON, ROOM
from tests.jaxengine.engine.test_learnt_drafters import DRAFTERS, drafting
from tests.jaxengine.engines import Answer, alone, ask, load, prompt, serve
from tests.tiny import EOS
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
FREE = {"temperature": 1.0}
FOUR = dict.fromkeys(range(200, 204), 40.0)  # ids that repeat themselves, as there are no others
REPEATS = {"temperature": 1.0, "logit_bias": FOUR}


def sampled(**samplers: Any) -> dict[str, Any]:
    return {"temperature": 0.9, "samplers": Samplers(**samplers)}


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": FREE,
    "top-k": {"temperature": 1.3, "top_k": 20, "processed_logprobs": True, "logprobs": 3},
    "top-p": {"temperature": 0.7, "top_p": 0.9, "logprobs": 5},
    "typical, min-p": {"temperature": 1.1, "typical_p": 0.8, "min_p": 0.02},
    "mirostat": sampled(mirostat_tau=4.0, mirostat_eta=0.3),
    "xtc": sampled(xtc_threshold=0.02, xtc_probability=0.5),
    "dry": {**REPEATS, "samplers": Samplers(dry_multiplier=2.0, dry_allowed_length=1, dry_breakers=(203,))},
    "dry, greedy": {"samplers": Samplers(dry_multiplier=1.0, dry_allowed_length=1)},
    "dynamic temperature": sampled(dynatemp_range=0.8, dynatemp_exponent=1.3),
    "cutoffs": sampled(top_n_sigma=2.0, top_a=0.05, epsilon_cutoff=0.001, eta_cutoff=0.002),
    "smoothing, skew": sampled(smoothing_factor=0.3, smoothing_curve=2.0, skew=0.5),
    "an order": {"min_p": 0.01, **sampled(xtc_probability=0.5, order=("min_p", "xtc", "temperature"))},
    "no repeated n-gram": {**REPEATS, "samplers": Samplers(no_repeat_ngram_size=3)},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.4},
    "repetition in a range": {"repetition_penalty": 1.6, **sampled(repetition_range=9, repetition_slope=0.5)},
    "frequency, presence": {**REPEATS, "frequency_penalty": 0.8, "presence_penalty": 0.5},
    "frequency over length": {"repetition_penalty": 1.5, "frequency_penalty": 5.0, "frequency_over_length": True},
    "min_tokens": {**FREE, "logit_bias": {EOS: 8.0}, "min_tokens": 9, "ignore_eos": False},
    "eos": {**FREE, "logit_bias": {EOS: 3.0}, "ignore_eos": False},
    "logit_bias": {**FREE, "logit_bias": {100: 4.0, 101: -100.0}},
    "only biased": {**FREE, "logit_bias": dict.fromkeys(range(90, 130), 0.5), "only_biased": True},
    "bad words": {**REPEATS, "bad_words": ((200, 201), (201, 201), (202, 201, 203), (203, 202, 202))},
    "watermark": {**FREE, "watermark_gamma": 0.5, "watermark_delta": 4.0},
    "stop ids": {"temperature": 0.8, "stop_token_ids": tuple(range(40, 90)), "min_tokens": 5},
    "prompt_logprobs": {"logprobs": 2, "prompt_logprobs": True},
    "json": {**FREE, "grammar": PERSON, "max_tokens": ROOM},
    "regex": {**FREE, "grammar": DATE, "max_tokens": ROOM, "logprobs": 3},
    "reasoning, then json": {
        **FREE,
        "grammar": replace(PERSON, behind_reasoning=True),
        "reasoning": Reasoning(begin=(), end=(100, 101), budget=7),
        "max_tokens": ROOM,
    },
    "reasoning, opened": {**FREE, "logit_bias": {99: 9.0}, "reasoning": Reasoning((99,), (100, 101), 7)},
}


OTHER_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"logit_bias": FOUR},
    {"temperature": 0.9, "repetition_penalty": 1.3, "logit_bias": {EOS: 2.0}, "min_tokens": 15, "ignore_eos": False},
    {"temperature": 1.0, "logprobs": 2},
)
SCORED: tuple[dict[str, Any], ...] = ({"logprobs": 2, "prompt_logprobs": True},)
MATCHED: tuple[dict[str, Any], ...] = ({"temperature": 1.0, "grammar": DATE, "max_tokens": ROOM},)


@dataclass(frozen=True)
class World:
    """An engine of its own kind, and who is asked what there."""

    checkpoint: tuple[str, str]  # of which fixture
    options: dict[str, Any] = field(default_factory=dict)
    adapted: bool = False
    length: int = 9  # of prompts
    ways: tuple[dict[str, Any], ...] = OTHER_WAYS + SCORED + MATCHED


SUFFIX = json.dumps({"method": "suffix", "num_speculative_tokens": 5})
WORLDS = {
    "n-grams": World(("tiny", "llama2_gqa"), {"speculate": 5}),
    "suffixes": World(("tiny", "llama2_gqa"), {"speculative_config": SUFFIX}),
    "adapter": World(("tiny", "llama2_gqa"), {"max_loras": 1}, adapted=True),
    "windows": World(("zoo", "gemma3_text"), length=20),
    "dynamic rope": World(("tiny", "llama_dynamic"), ways=OTHER_WAYS + SCORED),
    # It comes after 16 tokens, in the answers, behind which nothing can be told of a prompt that was read before.
    "rope switch": World(("zoo", "phi3_longrope"), ways=OTHER_WAYS + MATCHED),
    "state space": World(("zoo", "mamba")),
    "encoder": World(("seq2seq", "flan_t5")),
}


def cuts(request: Request, whole: Answer) -> dict[int, Request]:
    """`request` resumed behind each of its tokens but the last, by how many it has."""
    return {
        cut: replace(
            request,
            id=1000 + cut,
            resume=Resume(tuple(whole.ids[:cut]), whole.surprises[cut - 1] if whole.surprises else None),
        )
        for cut in range(1, len(whole.ids))
    }


def check_cuts(engine: Engine, request: Request) -> Answer:
    """The answer to `request`, which is the same wherever it is cut."""
    whole = alone(engine, request)
    resumed = cuts(request, whole)
    assert resumed, whole
    engine._start_over()
    for _ in range(2):
        answers = serve(engine, resumed.values())
        for cut, each in resumed.items():
            left = replace(whole, tokens=whole.tokens[cut:])
            assert_same(answers[each.id], left, each)
            assert answers[each.id].surprises == pytest.approx(whole.surprises[cut:], abs=1e-4)
    return whole


@pytest.mark.parametrize("way", WAYS)
def test_the_rest_of_an_answer_is_what_it_would_have_been(narrow: Engine, way: str) -> None:
    before = narrow.stats().step_failures
    whole = check_cuts(narrow, ask(1, prompt(9, seed=3), **{"max_tokens": 24, **WAYS[way]}))
    assert narrow.stats().step_failures == before
    ends = {"eos": "EOS", "min_tokens": "EOS", "stop ids": "STOP_TOKEN", "json": "EOS", "regex": "EOS"}
    assert whole.finish.name == ends.get(way, "EOS" if "json" in way else "LENGTH")
    assert len(whole.surprises) == (len(whole.ids) if way == "mirostat" else 0)


@pytest.mark.parametrize("kind", WORLDS)
def test_it_is_so_with_every_kind_of_engine(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_cache: None
) -> None:
    world = WORLDS[kind]
    note, (fixture, name) = StepTimes.note, world.checkpoint
    monkeypatch.setattr(StepTimes, "note", lambda times, size, seconds: note(times, size, 1.0))  # so that drafts pay
    directory: Path = request.getfixturevalue(fixture)(name)
    adapters: dict[str, Path] = {}
    if world.adapted:
        adapters["a"] = tmp_path / "a"
        adapted(directory, seed=1, r=4, target_modules="all-linear").save_pretrained(adapters["a"])
    engine = load(directory, every_bucket=True, adapters=adapters, max_batch_prefill_tokens=16, **world.options)
    for number, way in enumerate(world.ways):
        ids = prompt(world.length, seed=number)
        check_cuts(engine, ask(number, ids, adapter="a" if adapters else "", **{"max_tokens": 22, **way}))
    assert engine.stats().compiles_after_warmup == engine.stats().step_failures == 0
    assert bool(engine.stats().drafts) == bool(engine.speculator)
    switched = engine.scheduler.rope_switch_length
    assert switched == (16 if kind == "rope switch" else 0)
    engine.close()


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_it_is_so_with_learnt_drafters(kind: str, tiny: Checkpoints, compile_cache: None) -> None:
    engine = drafting(tiny("llama2_gqa"), DRAFTERS[kind])
    with speculator(engine, eager(engine, engine.runner)) as drafts:
        for number, way in enumerate(OTHER_WAYS):
            check_cuts(engine, ask(number, prompt(9, seed=number), **{"max_tokens": 22, **way}))
    assert drafts.draft_tokens > 100
    engine.close()


def statistics(engine: Engine, requests: Iterable[Request]) -> tuple[list[int], Answer]:
    """What steps count as answered, and the last answer."""
    counts, step = [], engine.step

    def counting() -> Any:
        result = step()
        counts.append(result.answered_tokens if result else 0)
        return result

    engine.step = counting  # type: ignore[method-assign]
    try:
        answers = serve(engine, requests)
    finally:
        del engine.step  # type: ignore[method-assign]
    return counts, [*answers.values()][-1]


def test_what_is_found_in_the_cache_counts_as_far_as_it_is_of_the_prompt(narrow: Engine) -> None:
    """Two pages of 16 tokens hold the prompt of 9 and most of what was answered."""
    narrow._start_over()
    request = ask(1, prompt(9, seed=5), max_tokens=40)
    whole = serve(narrow, [request])[1]
    before = narrow.stats()
    counts, answer = statistics(narrow, [cuts(request, whole)[30]])
    assert answer.ids == whole.ids[30:] and answer.cached_tokens == 9
    assert min(counts) >= 0 and sum(counts) == 10
    after = narrow.stats()
    assert after.cached_prompt_tokens - before.cached_prompt_tokens == 9
    assert after.generated_tokens - before.generated_tokens == 10


def test_a_text_that_its_grammar_cannot_follow_ends_its_request_alone(narrow: Engine) -> None:
    letters = Grammar("regex", "[a-z]{9}")
    bound = ask(1, prompt(5), grammar=letters, max_tokens=ROOM, temperature=1.0)
    whole = alone(narrow, bound)
    wrong = replace(bound, id=2, resume=Resume((*whole.ids[:3], EOS)))
    answers = serve(narrow, [wrong, replace(bound, id=3, resume=Resume(tuple(whole.ids[:3])))])
    assert answers[2].finish is FinishReason.INVALID and "the text cannot go on" in answers[2].error
    assert answers[3].ids == whole.ids[3:]


@pytest.mark.parametrize("reasons", [False, True], ids=["grammar", "reasoning"])
def test_a_matcher_that_breaks_while_it_reads_ends_its_request_alone(
    narrow: Engine, reasons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on a thread of its own, whose exceptions nobody sees."""

    class Panic(BaseException):
        pass

    def panic(*_: object) -> None:
        raise Panic

    how: dict[str, Any] = {"reasoning": Reasoning((), (100,), 5)} if reasons else {"grammar": DATE}
    monkeypatch.setattr("jaxengine.grammar.matcher.Matcher.catch_up", panic)
    answers = serve(narrow, [replace(ask(1, prompt(5), **how), resume=Resume((40, 41)))])
    assert answers[1].finish is FinishReason.ERROR and "the text cannot go on" in answers[1].error


REFUSED: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "beam search": ({"beams": BeamSearch(width=2)}, (5,), "resume does not go with beam search"),
    "pooling": ({"max_tokens": 1, "pooling": "last"}, (5,), "resume does not go with pooling"),
    "logits": ({"max_tokens": 1, "logits": "last"}, (5,), "resume does not go with logits"),
    "enough": ({"max_tokens": 2}, (5, 6), "resume.generated has 2 tokens, not fewer than max_tokens 2"),
    "id": ({"max_tokens": 3}, (5, 320), r"resume.generated has the id 320, outside \[0, 320\)"),
    "negative id": ({"max_tokens": 3}, (-1, 5), r"resume.generated has the id -1, outside \[0, 320\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_gone_on_with_is_refused_at_once(narrow: Engine, what: str) -> None:
    asked, generated, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        narrow.submit(replace(ask(1, prompt(5), **asked), resume=Resume(generated)))
    assert narrow.idle
