"""Requests with grammars: their text matches, whatever else is asked of them, and nobody else's text changes."""

import json
import re
import threading
from typing import Any

import jsonschema
import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.grammar.matcher import TOO_COSTLY
from jaxengine.request.event import FinishReason
from tests.jaxengine.engines import Answer, alone, ask, finish, load, prompt, serve
from tests.jaxengine.grammar import hostile
from tests.tiny import EOS, tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PERSON = Grammar("json_schema", json.dumps(SCHEMA))
DATE = Grammar("regex", r"(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]")
ROOM = 100  # tokens, which hold every text of these grammars


def text(answer: Answer) -> str:
    return tokenizer().decode([id for id in answer.ids if id != EOS])


def is_date(value: str) -> bool:
    return re.fullmatch(DATE.text, value) is not None


def is_person(answer: Answer) -> bool:
    jsonschema.validate(json.loads(text(answer)), SCHEMA)
    return answer.finish is FinishReason.EOS


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5},
    {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1},
    {"temperature": 0.8, "logit_bias": {40: 100.0}},
    {"temperature": 0.8, "logit_bias": dict.fromkeys(range(200), -100.0)},
    {"temperature": 1.0, "min_tokens": 90},
    {"temperature": 1.0, "logprobs": 5, "processed_logprobs": True},
    {"temperature": 1.0, "prompt_logprobs": True, "logprobs": 1},
    {"temperature": 1.0, "bad_words": ((94,),)},
    {"temperature": 1.0, "typical_p": 0.3},
    {"temperature": 1.0, "watermark_gamma": 0.5, "watermark_delta": 2.0},
    {"logit_bias": {4: 1.0}, "only_biased": True},  # no document can be written with it: the grammar comes first
]


@pytest.fixture(scope="module")
def engine(narrow: Engine) -> Engine:
    return narrow


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_text_matches_however_it_is_sampled(engine: Engine, way: int) -> None:
    requests = [ask(seed, prompt(5, seed), grammar=PERSON, max_tokens=ROOM, **WAYS[way]) for seed in range(1, 4)]
    answers = serve(engine, requests)
    assert all(is_person(answers[request.id]) for request in requests)


def test_a_grammar_that_ends_ends_the_text(engine: Engine) -> None:
    answer = alone(engine, ask(1, prompt(5), grammar=DATE, max_tokens=ROOM, temperature=1.0))
    assert answer.ids[-1] == EOS
    assert is_date(text(answer))


def test_logprobs_are_of_the_masked_distribution(engine: Engine) -> None:
    forced = Grammar("regex", "abc")
    answer = alone(engine, ask(1, prompt(5), grammar=forced, max_tokens=8, logprobs=5))
    assert answer.tokens[-1].id == EOS
    assert answer.tokens[-1].logprob == 0
    assert answer.tokens[-1].top == ((EOS, 0.0),), "a forbidden id is listed"


def test_neighbours_of_grammars_get_the_tokens_they_get_alone(engine: Engine) -> None:
    plain = [ask(n, prompt(4 + n, n), max_tokens=30, temperature=n % 2) for n in range(1, 9)]
    expected = {request.id: alone(engine, request).ids for request in plain}
    bound = [ask(100 + n, prompt(3, n), grammar=PERSON, max_tokens=ROOM, temperature=1.0) for n in range(8)]
    answers = serve(engine, [each for pair in zip(plain, bound, strict=True) for each in pair])
    assert {request.id: answers[request.id].ids for request in plain} == expected
    assert all(is_person(answers[request.id]) for request in bound)


def test_a_preempted_sequence_goes_on_with_its_grammar(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(n, prompt(20, n), grammar=PERSON, max_tokens=ROOM, temperature=1.0) for n in range(1, 13)]
    expected = {request.id: alone(engine, request).ids for request in requests}
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(13, 16))
    before = engine.stats().preemptions
    for request in requests:
        engine.submit(request)
    while engine.requests.inbox or engine.preparing:  # all are to run at once
        engine.requests.read_inbox()
    answers = finish(engine, {request.id: Answer() for request in requests})
    assert engine.stats().preemptions > before
    assert {request.id: answers[request.id].ids for request in requests} == expected


def test_a_failed_step_costs_no_token_of_a_grammar(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(1, prompt(5), grammar=PERSON, max_tokens=ROOM, temperature=1.0)
    expected = alone(engine, request).ids
    fetch, steps = engine.runner.fetch, iter(range(1000))

    def failing(flight: Any) -> Any:
        if next(steps) == 7:
            raise RuntimeError("the device failed")
        return fetch(flight)

    monkeypatch.setattr(engine.runner, "fetch", failing)
    assert serve(engine, [request])[1].ids == expected


def test_nothing_is_compiled_for_a_grammar(engine: Engine) -> None:
    before = engine.stats().compiles_after_warmup
    alone(engine, ask(1, prompt(5), grammar=Grammar("regex", "[a-f]{9}"), max_tokens=ROOM))
    assert engine.stats().compiles_after_warmup == before


def vet(engine: Engine) -> Any:
    assert engine.constraints._grammars is not None
    return engine.constraints._grammars.vet


def test_a_grammar_is_tried_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = Grammar("regex", "[g-k]{5}")
    asked: list[bytes] = []
    ask_helper = vet(engine)._ask
    monkeypatch.setattr(vet(engine), "_ask", lambda text: (asked.append(text), ask_helper(text))[1])
    before = engine.stats()
    for numbers in (range(1, 6), range(6, 8)):
        serve(engine, [ask(n, prompt(5, n), grammar=grammar, max_tokens=ROOM) for n in numbers])
    after = engine.stats()
    assert len(asked) == 1
    assert after.grammars_compiled == before.grammars_compiled + 7
    assert after.grammar_cache_hits == before.grammar_cache_hits + 6
    assert after.grammar_mask_seconds > before.grammar_mask_seconds


def test_texts_of_one_grammar_share_no_limit(engine: Engine) -> None:
    """As llguidance's copies of one matcher would: each text makes lexer states, and they have at most 50,000."""
    grammar = Grammar("regex", r"(.{0,200} .{0,200}\n)*")
    ways = [ask(n, prompt(5, n), grammar=grammar, max_tokens=60, temperature=1.5) for n in range(1, 5)]
    expected = [alone(engine, request).ids for request in ways]
    for _ in range(2):
        answers = serve(engine, ways)
        assert [answers[request.id].ids for request in ways] == expected


def test_a_grammar_that_nobody_waits_for_is_not_tried(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    gate = threading.Event()

    def slow(grammar: Grammar) -> str:
        tried.append(grammar.text)
        gate.wait()
        return ""

    monkeypatch.setattr(vet(engine), "check", slow)
    blocking = [ask(n, prompt(5), grammar=Grammar("regex", f"a{{{n}}}"), max_tokens=30) for n in range(1, 17)]
    for request in [*blocking, ask(99, prompt(5), grammar=Grammar("regex", "late"))]:
        engine.submit(request)
    engine.step()
    engine.cancel(99)
    engine.step()
    gate.set()
    finish(engine, {request.id: Answer() for request in blocking})
    assert len(tried) == 16 and "late" not in tried


@pytest.mark.parametrize(
    "grammar", [Grammar("regex", "(["), Grammar("json_schema", '{"not":{}}'), Grammar("lark", "start: nothing")]
)
def test_a_grammar_that_cannot_be_compiled_is_refused(engine: Engine, grammar: Grammar) -> None:
    before = engine.stats().grammar_refusals
    answers = serve(engine, [ask(1, prompt(5), grammar=grammar), ask(2, prompt(5), max_tokens=3)])
    assert answers[1].finish is FinishReason.INVALID
    assert answers[1].error.startswith("grammar: ")
    assert answers[1].ids == []
    assert answers[2].finish is FinishReason.LENGTH
    assert engine.stats().grammar_refusals == before + 1


def test_a_grammar_that_takes_too_long_costs_its_sender_alone(engine: Engine) -> None:
    [letter] = tokenizer().encode("a", add_special_tokens=False)
    costly = {"grammar": hostile.LATE, "max_tokens": 120, "logit_bias": {letter: 100.0}}
    plain = ask(2, prompt(5), max_tokens=100)
    expected = alone(engine, plain).ids
    answers = serve(engine, [ask(1, prompt(5), **costly), plain])
    assert answers[1].finish is FinishReason.INVALID
    assert answers[1].error == f"grammar: {TOO_COSTLY}"
    assert text(answers[1]).startswith(hostile.ZEROS)
    assert answers[2].ids == expected
    again = alone(engine, ask(3, prompt(5), **costly))
    assert (again.finish, again.error, again.ids) == (FinishReason.INVALID, answers[1].error, [])


def test_ignore_eos_with_a_grammar_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="ignore_eos"):
        engine.submit(ask(1, prompt(5), grammar=DATE, ignore_eos=True))


def test_a_request_can_be_cancelled_while_its_grammar_compiles(engine: Engine) -> None:
    engine.submit(ask(1, prompt(5), grammar=Grammar("regex", "[l-p]{5}")))
    engine.cancel(1)
    assert finish(engine, {1: Answer()})[1].finish is FinishReason.CANCELLED
    assert not engine.requests.live and not engine.preparing


THINK, END = 300, (301, 302)  # ids of the tiny vocabulary that stand for the marks of a thought


def reasoned(engine: Engine, reasoning: Reasoning, **params: Any) -> Answer:
    grammar = Grammar(DATE.kind, DATE.text, behind_reasoning=True)
    return alone(engine, ask(1, prompt(5), grammar=grammar, reasoning=reasoning, max_tokens=ROOM, **params))


def test_the_grammar_begins_behind_the_reasoning(engine: Engine) -> None:
    answer = reasoned(engine, Reasoning((), END, budget=12), temperature=1.0)
    ids = answer.ids
    assert tuple(ids[12:14]) == END, "the end was not forced"
    assert is_date(tokenizer().decode(ids[14:-1]).strip("\n"))
    assert answer.finish is FinishReason.EOS


def test_the_model_may_leave_out_its_reasoning(engine: Engine) -> None:
    answer = reasoned(engine, Reasoning((THINK,), END, budget=5), logit_bias={THINK: -100.0})
    assert THINK not in answer.ids
    assert is_date(text(answer).strip("\n"))


def test_the_model_may_begin_with_reasoning(engine: Engine) -> None:
    answer = reasoned(engine, Reasoning((THINK,), END, budget=5), logit_bias={THINK: 100.0})
    assert answer.ids[0] == THINK
    assert tuple(answer.ids[6:8]) == END


def test_reasoning_cannot_end_the_text_where_an_answer_is_owed(engine: Engine) -> None:
    answer = reasoned(engine, Reasoning((), END, budget=5), logit_bias={EOS: 100.0})
    assert answer.ids.index(EOS) == len(answer.ids) - 1 > 5
    assert is_date(tokenizer().decode(answer.ids[7:-1]).strip("\n"))


def test_what_is_tried_is_what_is_compiled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Grammar] = []
    monkeypatch.setattr(vet(engine), "check", lambda grammar: tried.append(grammar) or "no")
    answer = reasoned(engine, Reasoning((), END, budget=5))
    assert answer.error == "grammar: no"
    assert [each.behind_reasoning for each in tried] == [True]


def test_a_budget_needs_no_grammar(engine: Engine) -> None:
    request = ask(1, prompt(5), reasoning=Reasoning((), END, budget=4), max_tokens=20)
    free = alone(engine, ask(2, prompt(5), max_tokens=20)).ids
    ids = alone(engine, request).ids
    assert ids[:4] == free[:4]
    assert tuple(ids[4:6]) == END
    assert len(ids) == 20


def test_newlines_may_stand_between_reasoning_and_answer(engine: Engine) -> None:
    [newline] = tokenizer().encode("\n", add_special_tokens=False)
    answer = reasoned(engine, Reasoning((), END, budget=3), logit_bias={newline: 100.0})
    after = tokenizer().decode(answer.ids[5:-1])
    assert after.startswith("\n\n")
    assert is_date(after.removeprefix("\n\n"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name", [("zoo", "mamba"), ("zoo", "gemma3_text"), ("seq2seq", "t5"), ("seq2seq", "bart")]
)
def test_every_kind_of_model_takes_grammars(
    kind: str, name: str, request: pytest.FixtureRequest, compile_cache: None
) -> None:
    engine = load(request.getfixturevalue(kind)(name))
    requests = [ask(n, prompt(5, n), grammar=DATE, max_tokens=30, temperature=1.0) for n in range(1, 4)]
    answers = serve(engine, requests)
    assert all(is_date(text(answers[request.id])) for request in requests)


def test_a_grammar_that_could_not_be_tried_is_no_fault_of_its_sender(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(grammar: Grammar) -> str:
        raise KeyboardInterrupt("a panic is no Exception either")

    monkeypatch.setattr(vet(engine), "check", broken)
    answers = serve(engine, [ask(1, prompt(5), grammar=Grammar("regex", "[q-u]{5}")), ask(2, prompt(5), max_tokens=3)])
    assert answers[1].finish is FinishReason.ERROR
    assert answers[2].finish is FinishReason.LENGTH
