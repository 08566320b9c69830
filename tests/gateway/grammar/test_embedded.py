"""JSON schemas inside a client's Lark mean what they mean anywhere else, and nothing else in it is touched."""

import time

import pytest

from gateway.errors import RequestError
from gateway.grammar.constraint import Constraint
from gateway.grammar.embedded import MAX_SCHEMAS
from tests.gateway.grammar.llguidance_bytes import allows

LENIENT = '{"x-guidance": {"lenient": true, "whitespace_pattern": "x"}, "type": "integer"}'


def lark(text: str) -> Constraint:
    return Constraint.of("grammar", text, "field")


def test_a_schema_holds_whatever_options_it_gives_itself() -> None:
    grammar = lark(f'start: "a" %json {LENIENT} "b"').to_proto({})
    assert allows(grammar, "a12b") and not allows(grammar, 'a"x"b')


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ('{"x-guidance":{"lenient":true},"type":"array","uniqueItems":true}', "uniqueItems"),
        ('{"$schema":"http://json-schema.org/draft-04/schema#","if":{}}', "if"),
        ('{"properties":{"a":{"not":{}}}}', "not cannot be enforced (at #/properties/a)"),
        ('{"a":1,"a":2}', "twice"),
        ("[]", "object"),
        ("start", "not followed by JSON"),
        ("", "not followed by JSON"),
    ],
)
def test_what_a_schema_asks_is_enforced_or_refused_by_name_and_line(schema: str, keyword: str) -> None:
    with pytest.raises(RequestError) as caught:
        lark(f"start: a\n# x\na: %json {schema}")
    assert caught.value.param == "field" and "%json in line 3" in caught.value.message
    assert keyword in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        'start: "%json [1]"', r'start: "\"%json [1]"', "start: /%json [1]/", r"start: /\/%json/",
        'start: "a" # %json [1]',
        'start: "a" // "%json [1]', 'start: "//" /"/ "a"', "start: <%json>",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_schema_is_left_alone(text: str) -> None:
    assert lark(text).text == text


@pytest.mark.parametrize("rule", ["a[temperature=0.5]: /x/", 'a[suffix="y", temperature = 1]: /x/'])
def test_a_temperature_of_a_rule_is_refused_as_it_would_have_no_effect(rule: str) -> None:
    with pytest.raises(RequestError, match="temperature in line 2"):
        lark(f"start: a\n{rule}")
    lark('start: temperature\ntemperature: "[temperature=1]"')


def test_a_quote_in_a_regex_or_a_token_hides_no_schema() -> None:
    for before in (r'/a"/', r'/[\/"]/', '<a"b>', '"a//"', r'"\\"'):
        with pytest.raises(RequestError, match="not cannot be enforced"):
            lark(f'start: {before} %json {{"not": {{}}}} "b"')


@pytest.mark.parametrize("unit", ["/\\", '"\\'], ids=["regex", "string"])
def test_what_does_not_end_is_looked_at_once(unit: str) -> None:
    began = time.process_time()
    lark('start: "a"\n' + 30_000 * unit)
    assert time.process_time() - began < 1  # 20 s where each quote is a new beginning


def test_lines_stay_where_they_are() -> None:
    text = 'start: %json {\n  "type":\n "integer"\n}\nb: "c" %json\n{}\nlast: "d"'
    written = lark(text).text
    assert written.count("\n") == text.count("\n") and written.splitlines()[-1] == 'last: "d"'
    assert allows(lark(text).to_proto({}), "12")


def test_schemas_are_bounded() -> None:
    with pytest.raises(RequestError, match=str(MAX_SCHEMAS)):
        lark("start: " + "%json {} " * (MAX_SCHEMAS + 1))
