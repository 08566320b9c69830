"""Structural tags: text is free until a mark, from which on its format holds."""

import time
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.grammar import structural_tag
from gateway.grammar.constraint import Constraint
from gateway.grammar.structural_tag import MAX_FORMATS
from tests.gateway.grammar.llguidance_bytes import TOKENIZER, allows

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = {"type": "json_schema", "json_schema": OBJECT}
ANY = {"type": "any_text"}


def tag(begin: str, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": list(tags), **options}


LEGACY = {
    "structures": [
        {"begin": "<f=one>", "schema": OBJECT, "end": "</f>"}, {"begin": "<f=two>", "schema": True, "end": "</f>"}
    ],
    "triggers": ["<f="],
}  # fmt: skip
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        LEGACY,
        ["", "any <b>text", '<f=one>{"a":1}</f>', 'x<f=two>[]</f>y<f=one>{"a":1}</f>z'],
        ["<f=three>", "<f=one>{}</f>", '<f=one>{"a":1}', '<f=one>{"a":1}</g>'],
    ),
    (triggered(tag("<f>", JSON, "</f>"), at_least_one=True), ['x<f>{"a":1}</f>y'], ["x", ""]),
    (triggered(tag("<f>", JSON, "</f>"), stop_after_first=True), ['x<f>{"a":1}</f>', "x"], ['<f>{"a":1}</f>y']),
    (
        {"type": "tags_with_separator", "tags": [tag("<f>", JSON, "</f>")], "separator": ","},
        ["", '<f>{"a":1}</f>', '<f>{"a":1}</f>,<f>{"a":2}</f>'],
        ["x", '<f>{"a":1}</f>,', '<f>{"a":1}</f><f>{"a":1}</f>'],
    ),
    (
        {
            "type": "sequence",
            "elements": [tag("<t>", ANY, ["</t>", "</u>"]), {"type": "const_string", "value": "!"}, JSON],
        },
        ['<t>a</b></t>!{"a":1}', '<t></u>!{"a":1}'],
        ['!{"a":1}', '<t>a</t>{"a":1}', '<t>a!{"a":1}'],
    ),
    (
        {"type": "or", "elements": [{"type": "regex", "pattern": "[a-c/]+\n"}, {"type": "const_string", "value": '"'}]},
        ["a/b\n", '"'],
        ["d", "a"],
    ),
    ({"type": "sequence", "elements": [{"type": "const_string", "value": "a:"}, ANY]}, ["a:", "a:anything"], ["b"]),
]


@pytest.mark.parametrize(("given", "right", "wrong"), CASES)
def test_a_format_holds_where_it_begins(given: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    whole = given if "structures" in given else {"type": "structural_tag", "format": given}
    grammar = Constraint.of("structural_tag", whole, "field").to_proto({})
    assert {text: allows(grammar, text) for text in right} == dict.fromkeys(right, True)
    assert {text: allows(grammar, text) for text in wrong} == dict.fromkeys(wrong, False)


@pytest.mark.parametrize("trigger", ["<|tool|>", "<|to", "<|tool|> "])
def test_a_mark_that_is_a_token_is_written_as_the_token(trigger: str) -> None:
    marks = {TOKENIZER.decode_str([id]): id for id in range(256, TOKENIZER.vocab_size)}
    begin, end = marks["<|tool|>"], marks["<|/tool|>"]
    one = {"begin": "<|tool|> ", "schema": OBJECT, "end": "<|/tool|>"}
    constraint = Constraint.of("structural_tag", {"structures": [one], "triggers": [trigger]}, "field")
    grammar = constraint.to_proto(marks)
    assert allows(grammar, [*b"hello", begin, *b' {"a":1}', end, *b"bye"])
    assert not allows(grammar, [*b"hello", begin, *b' {"a":1}', *b"bye"])
    assert not allows(grammar, [begin, *b"bye"])


DEEP: dict[str, Any] = {"type": "const_string", "value": "a"}
for _ in range(20):
    DEEP = {"type": "or", "elements": [DEEP]}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("{", "JSON"), ([], "object"), ({}, "structures"), ({"structures": [1], "triggers": ["a"]}, "structures"),
        ({"structures": [{"begin": "a", "end": ""}]}, "triggers"), ({"format": 1}, "object"),
        ({"structures": [{"begin": "a", "end": "", "schema": {"not": {}}}], "triggers": ["a"]}, "not cannot be"),
        ({"structures": [{"begin": "a", "end": 1}], "triggers": ["a"]}, "end"),
        ({"structures": [{"begin": "ab", "end": ""}], "triggers": ["a", "ab"]}, "exactly one"),
        ({"structures": [{"begin": "b", "end": ""}], "triggers": ["a"]}, "exactly one"),
        ({"format": {"type": "grammar", "grammar": "a"}}, "grammar"), ({"format": {"type": [1]}}, "not supported"),
        ({"format": {**JSON, "style": "qwen_xml"}}, "style"), ({"format": {**ANY, "excludes": ["a"]}}, "excludes"),
        ({"format": {"type": "sequence", "elements": [ANY, JSON]}}, "last"), ({"format": DEEP}, "16"),
        ({"format": tag("a", {"type": "or", "elements": [ANY]}, "b")}, "last"),
        ({"format": {"type": "regex", "pattern": "((a{100}){100}){100}"}}, "10000"),
        ({"format": {"type": "regex"}}, "pattern"),
        ({"format": {"type": "or", "elements": [{"type": "const_string", "value": "a" * 8192}] * 40}}, "262144"),
        ({"format": {"type": "or", "elements": [{"type": "const_string", "value": "a"}] * 501}}, "500"),
        ({"format": {"type": "tags_with_separator", "tags": [1], "separator": ","}}, "object"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(given: Any, part: str) -> None:
    with pytest.raises(RequestError) as caught:
        Constraint.of("structural_tag", given, "field")
    assert part in caught.value.message and caught.value.param == "field"
    assert caught.value.message.startswith("field is not valid: ") and len(caught.value.message) < 200


MANY = [str(number) for number in range(MAX_FORMATS + 1)]


@pytest.mark.parametrize(
    ("format", "refusal"),
    [
        ({**triggered(tag("<f>", ANY, "</f>")), "triggers": MANY}, "triggers has 501 entries, at most 500"),
        (tag("<f>", ANY, MANY), "end has 501 entries, at most 500"),
        ({"type": "or", "elements": [{"type": "const_string", "value": "a" * 8_000}] * 40}, "more than 262144"),
        ({"type": "sequence", "elements": [{**JSON, "json_schema": {"const": "a" * 8_000}}] * 40}, "more than 262144"),
    ],
    ids=["triggers", "ends", "texts", "schemas"],
)
def test_what_makes_a_large_grammar_is_refused_naming_the_limit(format: dict[str, Any], refusal: str) -> None:
    with pytest.raises(RequestError, match=refusal):
        Constraint.of("structural_tag", {"format": format}, "field")


def test_thousands_of_added_tokens_that_begin_alike_cost_a_text_little() -> None:
    tokens = {f"<unused{number}>": number for number in range(6_000)} | {"<u": 6_000, "\n": 6_001}
    text = "<u<unused7>" + 4_000 * "<v" + "\n"
    format = {"type": "sequence", "elements": [{"type": "const_string", "value": text}] * 30}
    began = time.process_time()
    lark = structural_tag.lark({"format": format}, tokens, "field")
    assert time.process_time() - began < 1  # 6 s where each token is tried at each place
    assert lark.count('<[6000]> <[7]> "<v<v') == lark.count("<[6001]>") == 30
