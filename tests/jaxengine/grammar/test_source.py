"""What llguidance is given to compile is what the client wrote, or the client is told why not."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from jaxengine.grammar.grammar import Grammar, Kind
from jaxengine.grammar.source import LIMITS, library_text
from tests.jaxengine.grammar import vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(vocabulary.tokenizer_json(), n_vocab=vocabulary.SIZE, eos_token=[vocabulary.EOS])


def accepts(tokenizer: LLTokenizer, text: str, document: str) -> bool:
    """Whether the grammar `text` of llguidance matches the whole of `document`."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(document)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("kind", "text", "document", "other"),
    [
        ("json_schema", '{"type": "integer"}', "12", '"12"'),
        ("json_schema", "true", "[]", "["),
        ("regex", r"a/b\d+", "a/b12", "a/b"),
        ("regex", r"a\\", "a\\", "a"),
        ("regex", "", "", "a"),
        ("lark", 'start: "a" | "b"', "b", "c"),
        ("gbnf", 'root ::= "a" | [x-z]+', "zyx", "b"),
        ("gbnf", r'root ::= "\u00e9" [\u4e00-\u9fff]', "é中", "e中"),
        ("gbnf", r'root ::= "\U0001F600" "\u0022"', '\U0001f600"', "\U0001f600"),
        ("gbnf", r'root ::= "\\u00e9"', "\\u00e9", "é"),
    ],
)
def test_a_grammar_matches_what_its_notation_says(
    tokenizer: LLTokenizer, kind: Kind, text: str, document: str, other: str
) -> None:
    source = library_text(Grammar(kind, text))
    assert accepts(tokenizer, source, document)
    assert not accepts(tokenizer, source, other)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", "", "not JSON"),
        ("json_schema", "[" * 100_000, "nested too deeply"),
        ("json_schema", '{"const": 1e999}', "1e999"),
        ("json_schema", '{"maximum": -Infinity}', "-Infinity"),
        ("json_schema", '{"const": NaN}', "NaN"),
        ("json_schema", '{"type": "object"} }, {"lark_grammar": "start: /.*/"', "not JSON"),
        ("regex", "a\\", "backslash"),
        ("regex", "a\\\\\\", "backslash"),
        ("regex", "\ud800", "surrogate"),
        ("gbnf", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "nested too deeply"),
        ("gbnf", 'root ::= "a', "not GBNF"),
        ("gbnf", 'root ::= "\\', "not GBNF"),
        ("gbnf", 'other ::= "a"', "root"),
        ("gbnf", "root ::= missing", "missing"),
        ("gbnf", r'root ::= "\ud800"', "not GBNF"),
        ("sql", "select", "sql"),
    ],
)
def test_what_is_not_of_the_notation_is_refused_in_a_short_line(kind: Kind, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("{", r"\{")) as refusal:
        library_text(Grammar(kind, text))
    assert len(str(refusal.value)) < 200
    assert "\n" not in str(refusal.value)


def test_the_options_in_a_schema_reach_the_library(tokenizer: LLTokenizer) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "x-guidance": {"whitespace_flexible": False}}
    assert accepts(tokenizer, library_text(Grammar("json_schema", json.dumps(schema))), "[1,2]")
    assert not accepts(tokenizer, library_text(Grammar("json_schema", json.dumps(schema))), "[1 ,2]")


@pytest.mark.parametrize(
    "kind, text", [("json_schema", '{"const": "7"}'), ("regex", '"7"'), ("lark", r'start: "\"7\""')]
)
def test_two_newlines_may_stand_behind_reasoning(tokenizer: LLTokenizer, kind: Kind, text: str) -> None:
    source = library_text(Grammar(kind, text, behind_reasoning=True))
    assert accepts(tokenizer, source, '"7"')
    assert accepts(tokenizer, source, '\n\n"7"')
    assert not accepts(tokenizer, source, '\n\n\n"7"')
    assert not accepts(tokenizer, library_text(Grammar(kind, text)), '\n"7"')


@pytest.mark.parametrize("behind_reasoning", [False, True])
def test_a_schema_is_passed_on_as_it_was_written(behind_reasoning: bool) -> None:
    schema = '{"multipleOf": 0.10, "maximum": 1e3, "const": 12345678901234567890.5, "const": "\\u00e9"}'
    assert json.dumps(schema)[1:-1] in library_text(Grammar("json_schema", schema, behind_reasoning))


def test_a_grammar_is_the_same_when_it_was_sent() -> None:
    for grammar in (Grammar("regex", "a\nb"), Grammar("json_schema", "", True), Grammar("gbnf", "\ud800é")):
        assert Grammar.decoded(grammar.encoded()) == grammar
