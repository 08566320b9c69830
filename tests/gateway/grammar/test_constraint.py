"""Texts, regexes and grammars of clients: what llguidance is given allows exactly what was asked for."""

import json
import re
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.grammar import choice, notation, regex, whitespace
from gateway.grammar.constraint import Asked, Constraint
from gateway.grammar.json_style import JsonStyle
from tests.gateway.grammar.llguidance_bytes import Refused, allows


def of(asked: Asked, value: Any, **options: Any) -> Constraint:
    return Constraint.of(asked, value, "field", **options)


def refusal(asked: Asked, value: Any) -> str:
    with pytest.raises(RequestError, match=r"^field is not valid: ") as caught:
        of(asked, value)
    assert caught.value.param == "field"
    return caught.value.message


TEXTS = ["a", "ab", "", 'q"\\', "é\n\t", "\x01\x7f", "/x/ # y", "🙂", "\u2028", "<|im_end|>", "%json {", "a | b", " "]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_choice_is_any_text_and_no_other(text: str) -> None:
    grammar = of("choice", ["first", text, "last"]).to_proto({})
    assert all(allows(grammar, each) for each in ("first", text, "last"))
    assert not allows(grammar, text + "x")
    assert not allows(grammar, "firs")


@pytest.mark.parametrize(
    ("choices", "limit"),
    [
        ([], "no choices"),
        (["a"] * (choice.MAX_CHOICES + 1), "1000"),
        (["a" * (choice.MAX_CHARACTERS + 1)], "8192"),
        (["a" * 8_000] * 9, "65536"),
    ],
    ids=["none", "too many", "too long", "too long together"],
)
def test_choices_are_bounded(choices: list[str], limit: str) -> None:
    assert limit in refusal("choice", choices)


REGEXES = {
    "^ab$": ["ab", "b"],
    "^a|b$": ["a", "b", "ab"],
    r"\d{3}-\d+": ["123-4", "12-4"],
    r"ab\Z": ["ab", r"ab\Z"],
    r"a\\Z": [r"a\Z", "a"],
    r"a\$": ["a$", "a"],
    "(?i)yes|no": ["YES", "maybe"],
    "[a-z]+@[a-z]+\\.com": ["a@b.com", "a@b.org"],
    "a.c": ["abc", "a\nc"],
    "[]a]+": ["]a", "b"],
    "a+?b": ["aab", "b"],
}


@pytest.mark.parametrize("pattern", REGEXES)
def test_a_regex_is_of_the_whole_text_as_in_python(pattern: str) -> None:
    for text in REGEXES[pattern]:
        assert allows(of("regex", pattern).to_proto({}), text) is (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern, matching, other",
    [
        (r"\d+", "12", "1٣"), (r"[\d.]+", "1.2", "٣.2"), (r"\D", "٣", "1"), (r"\\d", r"\d", "1"), (r"[^\d]", "٣", "1"),
        (r"[^\D]", "1", "٣"), (r"[\Dx]", "٣", "1"),
    ],
)  # fmt: skip
def test_digits_are_the_ten_digits_as_in_json_schema(pattern: str, matching: str, other: str) -> None:
    schema = of("json", {"type": "string", "pattern": f"^{pattern}$"}).to_proto({})
    for text, allowed in ((matching, True), (other, False)):
        assert allows(of("regex", pattern).to_proto({}), text) is allowed
        assert allows(schema, json.dumps(text, ensure_ascii=False)) is allowed


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "empty"),
        ("a" * (regex.MAX_CHARACTERS + 1), "2048"),
        ("a\0b", "NUL"),
        ("((a{100}){100}){100}", "10000"),
        ("((a{1,100}){100,}){2}", "10000"),
        ("a{99999999999999999999}", "10000"),
        ("a{100}{101}", "10000"),
        ("(?:[)}]{101}){100}", "10000"),
        ("a++b", "possessive"),
        ("(ab)*+", "possessive"),
    ],
    ids=lambda value: value[:30],
)
def test_a_regex_that_costs_much_or_reads_two_ways_is_refused(pattern: str, reason: str) -> None:
    assert reason in refusal("regex", pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a{100}){100}", "a{100}b{200}" * 10, r"\{99999\}", "[{99999}]", "a{1,2}?b", "(", ")", "a{", "[", "\\", "*"],
)
def test_what_is_cheap_is_left_to_the_engine(pattern: str) -> None:
    assert of("regex", pattern).text == pattern


@pytest.mark.parametrize("pattern", [r"(?=a)a", r"(a)\1", "(", r"a\b"])
def test_what_rust_cannot_read_the_engine_refuses(pattern: str) -> None:
    with pytest.raises((Refused, ValueError)):
        allows(of("regex", pattern).to_proto({}), "a")


def test_gbnf_is_told_from_lark_by_how_it_defines_rules() -> None:
    gbnf = of("grammar", 'root ::= "yes" | [0-9]+').to_proto({})
    lark = of("grammar", 'start: "yes" | /[0-9]+/').to_proto({})
    assert (gbnf.WhichOneof("kind"), lark.WhichOneof("kind")) == ("gbnf", "lark")
    for grammar in (gbnf, lark):
        assert allows(grammar, "yes") and allows(grammar, "12") and not allows(grammar, "no")


@pytest.mark.parametrize("text", ['start: "::="', 'start: "a" // b ::= c', '# a ::= b\nstart: "x"'])
def test_lark_may_speak_of_gbnf(text: str) -> None:
    assert of("grammar", text).kind == "lark"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" \n", "empty"),
        ("a" * (notation.MAX_CHARACTERS + 1), "65536"),
        ('root ::= "a\0"', "NUL"),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, "64 levels"),
    ],
    ids=["empty", "long", "NUL", "nested"],
)
def test_grammars_are_bounded(text: str, reason: str) -> None:
    assert reason in refusal("grammar", text)


def test_any_object_is_an_object() -> None:
    grammar = of("json_object", True).to_proto({})
    assert allows(grammar, '{"a":[1, {}]}')
    assert not allows(grammar, "[1]")


@pytest.mark.parametrize(
    ("pattern", "between"), [(r"\s?", "\n"), ("[ ]{0,2}", "  "), (r"[\n\t ]*", "\t\n"), (r"\x20", " ")]
)
def test_a_client_may_say_what_stands_between_tokens(pattern: str, between: str) -> None:
    grammar = of("json_object", True, style=JsonStyle(whitespace.checked(pattern))).to_proto({})
    assert allows(grammar, f"{{{between}}}")
    assert not allows(grammar, "{\u00a0}")


@pytest.mark.parametrize("pattern", ["a", r"\w", ".", "[^a]", r"\x41", "1", r"[ ]{20000}", "[]]", "[[]]", "[ ]]"])
def test_only_whitespace_stands_between_tokens(pattern: str) -> None:
    with pytest.raises(ValueError, match="regex"):
        whitespace.checked(pattern)
