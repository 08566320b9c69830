"""Grammars that force calls: what llguidance lets through is read as calls, and they fit their schemas."""

from typing import Any

import jsonschema
import pytest

from gateway.grammar.json_schema import ANY_OBJECT, guided
from gateway.parsing.calls import Arguments
from gateway.parsing.parser import parser
from gateway.parsing.pieces import Tool
from gateway.parsing.tagged_calls import TaggedCalls
from gateway.parsing.tool_format import MarkedFormat, ToolFormat
from gateway.parsing.tool_formats import GENERIC, tool_format
from tests.gateway.parsing.messages import ReadMessage, read
from tests.gateway.parsing.tools_to_force import (
    EACH,
    ENDS,
    FORMATS,
    FREE,
    GUIDED,
    NATIVE,
    PLACE,
    SCHEMAS,
    SEEDS,
    message,
    spellings,
)
from tests.gateway.parsing.walks import accepts, vocabulary, walk


def assert_fitting(read: ReadMessage, text: str) -> None:
    for call in read.calls:
        jsonschema.validate(call.value, SCHEMAS[call.name])
        assert call.name in text


def opening(written: ToolFormat) -> str:
    """Text and the beginning of a call."""
    if isinstance(written, MarkedFormat):
        return "Let me see.\n" + (*written.sections, *written.opens)[0]
    return "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions."


@SEEDS
@EACH
def test_a_forced_text_is_calls_that_fit_their_schemas(written: ToolFormat, seeds: range) -> None:
    for words in spellings(written):
        grammar = written.grammar(GUIDED, parallel=True, token_id=words.token_id)
        for seed in seeds:
            text = walk(words, grammar, seed, ENDS)
            found = message(written, text)
            assert found.calls and not found.content, text
            assert_fitting(found, text)


@SEEDS
@EACH
def test_without_parallel_calls_there_is_exactly_one(written: ToolFormat, seeds: range) -> None:
    for words in spellings(written):
        grammar = written.grammar(GUIDED, parallel=False, token_id=words.token_id)
        for seed in seeds:
            assert len(message(written, walk(words, grammar, seed, ENDS)).calls) == 1


UNLISTED: list[dict[str, Any]] = [
    {"$ref": "#/$defs/place", "$defs": {"place": PLACE}},
    {"anyOf": [{**PLACE, "required": ["at"]}, {**PLACE, "required": ["near"]}]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "required": ["near"]},
]


@pytest.mark.parametrize("schema", UNLISTED, ids=["by reference", "either of two", "not named"])
@EACH
def test_arguments_that_the_schema_does_not_list_are_written_and_fit(
    written: ToolFormat, schema: dict[str, Any]
) -> None:
    for words in spellings(written):
        grammar = written.grammar(
            {"stop": Arguments(guided(schema, param="tools"))}, parallel=False, token_id=words.token_id
        )
        [call] = message(written, walk(words, grammar, 0, ENDS)).calls
        assert call.name == "stop" and call.value
        jsonschema.validate(call.value, schema)


ANY_ARGUMENTS = {
    "qwen3_coder": '<tool_call>\n<function=stop>\n{"why": true}</function>\n</tool_call>',
    "glm47": '<tool_call>stop\n{"why": true}</tool_call>',
    "pythonic": '[stop(**{"why": true})]',
}


@pytest.mark.parametrize("name", ANY_ARGUMENTS)
def test_a_call_may_have_arguments_where_any_are_allowed(name: str) -> None:
    written, words = tool_format(name), vocabulary()
    grammar = written.grammar({"stop": Arguments(ANY_OBJECT)}, parallel=False, token_id=words.token_id)
    assert accepts(words, grammar, ANY_ARGUMENTS[name])
    assert [each.value for each in message(written, ANY_ARGUMENTS[name]).calls] == [{"why": True}]


STRINGS: dict[str, Any] = {
    "day": {"type": "string", "format": "date"},
    "host": {"type": ["string", "null"], "format": "ipv4"},
    "at": {"type": "string", "pattern": "^a|[0-9]$", "maxLength": 6},
    "maybe": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "mixed": {"type": ["string", "integer"], "minLength": 2, "maxLength": 9, "minimum": 10},
    "kind": {"enum": ["a/b", "</b>", 5, None]},
    "code": {"type": "string", "allOf": [{"pattern": "[0-9]"}, {"maxLength": 3}]},
    "either": {"anyOf": [{"$ref": "#/$defs/code"}, {"type": "string", "const": "none"}, {"type": "boolean"}]},
    "any": {},
}
STRICT = {
    "type": "object",
    "properties": STRINGS,
    "required": [*STRINGS],
    "additionalProperties": False,
    "$defs": {"code": {"type": "string", "pattern": "^[A-Z]{2}$"}},
}
TAGS = {
    **dict.fromkeys(("qwen3_coder", "seed_oss"), "<parameter=day>"),
    **dict.fromkeys(("glm45", "glm47"), "<arg_key>day</arg_key>"),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4"), '<｜DSML｜parameter name="day" string="true">'),
    "deepseek_v41": '<｜DSML｜ parameter name="day" string="true">',
    "kimi_k3": '<|open|>argument key="day" type="string"<|sep|>',
    "minimax_m2": '<parameter name="day">',
    "gemma4": 'day:<|"|>',
    "functiongemma": "day:<escape>",
    **dict.fromkeys(("pythonic", "llama4_pythonic", "olmo3", "lfm2"), "day="),
}


@SEEDS
@EACH
def test_whatever_a_schema_says_of_strings_holds_where_they_are_plain_text(written: ToolFormat, seeds: range) -> None:
    tools = [Tool("stop", STRICT)]
    for words in spellings(written):
        arguments = Arguments(guided(STRICT, param="tools"))
        grammar = written.grammar({"stop": arguments}, parallel=False, token_id=words.token_id)
        for seed in seeds:
            text = walk(words, grammar, seed, [*ENDS, "null", "2024-02-29", "none", "5"])
            [call] = message(written, text, tools).calls
            jsonschema.validate(call.value, STRICT, format_checker=jsonschema.FormatChecker())
            assert TAGS.get(written.name, "") in text


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"format": "date"}, "2024-02-29", "2023-02-29"),
        ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ({"pattern": "^a|b$"}, "xb", "xc"),
        ({"pattern": "^(?:[a-c]|x)+$"}, "ax", "ay"),
        ({"enum": ["a/b", "c"]}, "a/b", "a"),
        ({"minLength": 2, "nullable": True}, "null", "x"),
        ({"type": ["string", "integer"], "minLength": 2, "minimum": 10}, 12, "5"),
        ({"type": ["string", "integer"], "minLength": 2, "minimum": 10}, "ab", "a"),
        ({"type": ["string", "boolean"], "enum": ["ab", True]}, "ab", "false"),
        ({"maxLength": 0}, "", "a"),
        ({"enum": ["ab", "cd"], "const": "ab"}, "ab", "cd"),
        ({"$ref": "#/$defs/long", "minLength": 2}, "abcd", "ab"),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2"])
def test_a_string_that_does_not_fit_is_not_let_through(name: str, schema: dict[str, Any], good: Any, bad: str) -> None:
    written, words = tool_format(name), vocabulary()
    parameters = {
        "type": "object",
        "properties": {"why": {"type": "string", **schema}},
        "required": ["why"],
        "$defs": {"long": {"minLength": 4}},
    }
    arguments = Arguments(guided(parameters, param="tools"))
    grammar = written.grammar({"stop": arguments}, parallel=False, token_id=words.token_id)
    call = WHY[name]
    assert accepts(words, grammar, call.format(good)) and not accepts(words, grammar, call.format(bad))
    [read_call] = message(written, call.format(good), [Tool("stop", parameters)]).calls
    assert read_call.value == {"why": None if good == "null" else good}


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_a_quote_ends_a_string_that_its_pattern_would_let_go_on(name: str) -> None:
    written, words = tool_format(name), vocabulary()
    parameters = {"type": "object", "properties": {"why": {"type": "string", "pattern": "b$"}}, "required": ["why"]}
    arguments = Arguments(guided(parameters, param="tools"))
    grammar = written.grammar({"stop": arguments}, parallel=False, token_id=words.token_id)
    call = NATIVE[name].partition("}")[0] + "}"
    assert isinstance(written, MarkedFormat)
    good, [quote], [end] = call.replace("no", "ab"), written.inner, written.closes
    assert accepts(words, grammar, good + end)
    assert not accepts(words, grammar, good.replace("ab", f"a{quote}b") + end)


LISTS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}, LISTS]},
        {"type": ["string", "array"], "minLength": 1, "items": {"type": "integer"}},
        {"anyOf": [{"$ref": "#/$defs/lists"}, {"type": "string", "maxLength": 9}, {"type": "null"}]},
        {"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "object", "maxProperties": 0}, LISTS]},
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2"])
def test_text_or_a_list_is_either_and_no_list_of_others(name: str, schema: dict[str, Any]) -> None:
    written, words = tool_format(name), vocabulary()
    parameters = {"type": "object", "properties": {"why": schema}, "required": ["why"], "$defs": {"lists": LISTS}}
    arguments = Arguments(guided(parameters, param="tools"))
    grammar = written.grammar({"stop": arguments}, parallel=False, token_id=words.token_id)
    for text, value in (("abc", "abc"), ("[1, 2]", [1, 2])):
        call = WHY[name].format(text)
        assert accepts(words, grammar, call)
        assert message(written, call, [Tool("stop", parameters)]).calls[0].value == {"why": value}
    assert not accepts(words, grammar, WHY[name].format('["a"]'))


def grown(depth: int) -> dict[str, Any]:
    """A schema whose choices would be 4 to the power of `depth`."""
    named = {f"d{at}": {"anyOf": 4 * [{"$ref": f"#/$defs/d{at + 1}"}]} for at in range(depth)}
    return {"why": {"$ref": "#/$defs/d0"}, "$defs": named | {f"d{depth}": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"why": {"$ref": "#/$defs/a"}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}},
        {"why": {"allOf": 30 * [{"anyOf": [{"pattern": "a"}, {"pattern": "b"}]}]}},
        grown(12),
    ],
    ids=["without end", "combined", "doubled"],
)
def test_choices_that_grow_without_bound_are_written_as_json(schema: dict[str, Any]) -> None:
    defs = schema.get("$defs", {})
    parameters = {"type": "object", "properties": {"why": schema["why"]}, "required": ["why"], "$defs": defs}
    arguments = Arguments(guided(parameters, param="tools"))
    grammar = tool_format("glm47").grammar({"stop": arguments}, parallel=False, token_id=vocabulary().token_id)
    assert "<arg_key>" not in grammar and "%json" in grammar


WHY = {
    "qwen3_coder": "<tool_call>\n<function=stop>\n<parameter=why>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm47": "<tool_call>stop<arg_key>why</arg_key><arg_value>{}</arg_value></tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="stop">\n<parameter name="why">{}</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
}


@pytest.mark.parametrize("key", ["a>b", 'a"b', " a", "class", "my-key", "é", ""])
@EACH
def test_a_key_that_a_format_cannot_spell_is_read_as_it_is_declared(written: ToolFormat, key: str) -> None:
    schema = {"type": "object", "properties": {key: {"type": "boolean"}}, "required": [key]}
    for words in spellings(written):
        arguments = Arguments(guided(schema, param="tools"))
        grammar = written.grammar({"stop": arguments}, parallel=False, token_id=words.token_id)
        [call] = message(written, walk(words, grammar, 0, ENDS), [Tool("stop", schema)]).calls
        assert call.value.keys() == {key}


VALUES: list[Any] = [
    *("", " ", "é🎉", 'say "hi"', "it's", "a\\b", "\\n", "a\nb", "\n", "\nx\n", "\t", "  a ", "\r\n", "\x7f", "\u2028"),
    *("</x>", "</think>", "{", "}", '{"a": 1}', "(", "]", "null", "None", "true", "5", "a, b", "a: b", "&amp;", "a=b"),
    *("'''", '"""', 5, -1.5, True, False, None, [], {}, [1, "a", None, [True]], {"a": {"b": ["c"]}}, {"": '"'}),
    ["</parameter>", "]"],
]


@pytest.mark.slow
@EACH
def test_a_value_that_the_schema_fixes_is_read_back_as_it_is_wherever_the_text_is_cut(written: ToolFormat) -> None:
    expected = {f"v{number}": value for number, value in enumerate(VALUES)}
    properties = {key: {"const": value} for key, value in expected.items()}
    schema = {"type": "object", "properties": properties, "required": [*expected], "additionalProperties": False}
    for words in spellings(written):
        arguments = {"stop": Arguments(guided(schema, param="tools"))}
        text = walk(words, written.grammar(arguments, parallel=False, token_id=words.token_id), 0, [])
        whole = message(written, text, [Tool("stop", schema)])
        assert repr(whole.calls[0].value) == repr(expected)  # True is not 1
        assert read(parser(written, None, [Tool("stop", schema)], prompt=""), text) == whole


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2", "deepseek_v4", "kimi_k3"])
def test_a_choice_that_holds_a_mark_of_the_format_can_be_written(name: str) -> None:
    written, words = tool_format(name), vocabulary()
    assert isinstance(written, MarkedFormat) and isinstance(written.body, TaggedCalls)
    for mark in (*written.body.value_ends, *written.body.cuts):
        schema = {"type": "object", "properties": {"why": {"enum": [f"a{mark}b"]}}, "required": ["why"]}
        arguments = {"stop": Arguments(guided(schema, param="tools"))}
        text = walk(words, written.grammar(arguments, parallel=False, token_id=words.token_id), 0, [])
        assert message(written, text, [Tool("stop", schema)]).calls[0].value == {"why": f"a{mark}b"}


@SEEDS
@EACH
def test_a_free_call_has_any_values_of_arguments_that_are_declared(written: ToolFormat, seeds: range) -> None:
    tools, named = [Tool("look", {"type": "object", "properties": FREE})], written.name in {*TAGS}
    for words in spellings(written):
        arguments = {"look": Arguments(ANY_OBJECT, tuple(FREE))}
        grammar = written.grammar(arguments, parallel=False, token_id=words.token_id)
        for seed in seeds:
            text = walk(words, grammar, seed, [*ENDS, "True"])
            read = message(written, text, tools)
            assert read.calls and not read.content
            for call in read.calls:
                assert isinstance(call.value, dict) and (call.value.keys() <= FREE.keys() or not named), text


@EACH
def test_text_that_is_no_call_is_not_let_through(written: ToolFormat) -> None:
    for words in spellings(written):
        grammar = written.grammar(GUIDED, parallel=True, token_id=words.token_id)
        assert not any(accepts(words, grammar, text) for text in ("", "\n", "Hello.", "[]", '{"city": "Rome"}'))


@SEEDS
@EACH
def test_free_text_may_hold_calls_and_every_call_fits(written: ToolFormat, seeds: range) -> None:
    for words in spellings(written):
        grammar = written.auto_grammar(GUIDED, parallel=True, token_id=words.token_id)
        if grammar is None:
            continue
        for seed in seeds:
            text = walk(words, grammar, seed, ENDS, begin=opening(written), end=0.1)
            found = message(written, text)
            assert found.calls, text
            assert_fitting(found, text)
            text = walk(words, grammar, seed, [*written.marks, *ENDS], end=0.05)
            assert_fitting(message(written, text), text)


def test_formats_with_marks_constrain_free_text_and_others_do_not() -> None:
    words = vocabulary()
    without = {
        written.name
        for written in [*FORMATS, GENERIC]
        if written.auto_grammar(GUIDED, parallel=True, token_id=words.token_id) is None
    }
    assert without == {"json_list", "llama3_json", "llama4_pythonic", "pythonic", "xlam"}
