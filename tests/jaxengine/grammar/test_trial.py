"""What a sender is told about a grammar: what is wrong with it, and not what it was."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from jaxengine.grammar.grammar import Grammar, Kind
from jaxengine.grammar.source import library_text
from jaxengine.grammar.trial import MAX_CHARACTERS, trial
from tests.jaxengine.grammar import vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(vocabulary.tokenizer_json(), n_vocab=vocabulary.SIZE, eos_token=[vocabulary.EOS])


def tried(tokenizer: LLTokenizer, kind: Kind, text: str) -> str:
    return trial(tokenizer, [vocabulary.EOS], Grammar(kind, text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'),
        ("json_schema", '{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}'),
        ("regex", r"\d{3}-\d{4}"),
        ("regex", "a*"),
        ("regex", ""),
        ("lark", 'start: "a" | "b" start'),
        ("gbnf", 'root ::= [0-9]+ ("." [0-9]+)?'),
    ],
)
def test_a_grammar_that_can_be_matched_is_fine(tokenizer: LLTokenizer, kind: str, text: str) -> None:
    assert tried(tokenizer, kind, text) == ""


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"not": {"type": "string"}}', '"not"'),
        ("json_schema", '{"type": "array", "uniqueItems": true, "contains": {}}', '"contains"'),
        ("json_schema", '{"type": "string", "format": "colour"}', "Unknown format: colour"),
        ("json_schema", '{"oneOf": [{"type": "string"}, {"minLength": 1}]}', "oneOf constraints are not supported"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "invalid regex: look-around"),
        ("json_schema", '{"$ref": "https://example.com/schema"}', "https://example.com/schema"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "minLength (5)"),
        ("regex", "(?<=a)b", "invalid regex: look-around"),
        ("regex", "(" * 20, "invalid regex: unclosed group"),
        ("lark", "start: x", 'line 1, column 8: unknown name: "x"'),
        ("lark", "start: <nothing>", 'unknown special token: "<nothing>"'),
        ("gbnf", "root ::= x", "no rule 'x'"),
        ("regex", "[^\\x00-\\U0010ffff]", "no text matches it"),
        ("json_schema", '{"$ref": "#"}', "no text matches it"),
        ("lark", "start: start", "no text matches it"),
    ],
)
def test_a_refusal_says_what_is_wrong(tokenizer: LLTokenizer, kind: str, text: str, reason: str) -> None:
    assert reason in tried(tokenizer, kind, text)


def test_newlines_behind_reasoning_are_no_text_of_a_grammar(tokenizer: LLTokenizer) -> None:
    grammar = Grammar("lark", "start: start", behind_reasoning=True)
    assert "no text matches it" in trial(tokenizer, [vocabulary.EOS], grammar)


def test_a_grammar_that_would_die_or_crawl_after_some_tokens_is_refused(tokenizer: LLTokenizer) -> None:
    refusal = tried(tokenizer, "regex", "((a{1,100}){1,100}){1,100}")
    assert refusal.startswith(("it is too complex", "it takes too long"))


@pytest.mark.parametrize("special", vocabulary.SPECIALS)
def test_a_text_that_spells_a_special_token_is_written_with_others(tokenizer: LLTokenizer, special: str) -> None:
    """A schema decides the text, and no special token's bytes are part of one."""
    text, special_ids = f"{json.dumps(special)}", range(len(vocabulary.SPECIALS))
    grammar = library_text(Grammar("json_schema", json.dumps({"const": special})))
    matcher, spelled = LLMatcher(tokenizer, grammar, log_level=0), Tokenizer.from_str(vocabulary.tokenizer_json())
    ids: list[int] = []
    while not matcher.is_stopped():
        mask = int.from_bytes(matcher.compute_bitmask(), "little") & ~(1 << vocabulary.EOS)
        if not mask:
            break
        assert not any(mask >> id & 1 for id in special_ids)
        ids.append(mask.bit_length() - 1)
        assert matcher.consume_token(ids[-1])
    assert spelled.decode(ids, skip_special_tokens=False) == text and matcher.is_accepting()


@pytest.mark.parametrize("count", [150, 300])
def test_an_object_may_have_many_optional_properties(tokenizer: LLTokenizer, count: int) -> None:
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer"}, {"type": "object", "properties": {"a": {}}}]
    fields = {f"field{number}": kinds[number % 3] for number in range(count)}
    for schema in ({"properties": fields}, {"properties": {"spec": {"type": "object", "properties": fields}}}):
        assert tried(tokenizer, "json_schema", json.dumps({"type": "object", **schema})) == ""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "secret" * 1000 + "("),
        ("json_schema", '{"type": "object", "not": {"const": "' + "secret" * 1000 + '"}}'),
        ("lark", "start: secret\n" * 1000),
        ("lark", "start: " + "secret" * 1000),
        ("gbnf", "root ::= " + "(" * 50 + "secret\n" * 1000),
    ],
)
def test_a_refusal_is_one_line_that_does_not_repeat_the_grammar(tokenizer: LLTokenizer, kind: str, text: str) -> None:
    refusal = tried(tokenizer, kind, text)
    assert 0 < len(refusal) <= MAX_CHARACTERS
    assert refusal.isprintable()
    assert refusal.count("secret") < 20


def test_the_same_grammar_is_judged_the_same(tokenizer: LLTokenizer) -> None:
    assert len({tried(tokenizer, "regex", r"[a-z]*\d{2,30}[a-z]{1,40}") for _ in range(5)}) == 1
