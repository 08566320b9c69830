"""Grammars that force calls: what llguidance lets through is read as calls, and they fit their schemas."""

import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from gateway.grammar.json_schema import ANY_OBJECT, guided
from gateway.parsing.calls import Arguments
from gateway.parsing.harmony import answer_grammar, or_answer
from gateway.parsing.parser import parser
from gateway.parsing.pieces import Tool
from gateway.parsing.tagged_calls import TaggedCalls
from gateway.parsing.tool_format import MarkedFormat, ToolFormat
from gateway.parsing.tool_formats import GENERIC, TOOL_FORMATS, tool_format
from tests.gateway.parsing.messages import ReadMessage, read
from tests.gateway.parsing.walks import Vocabulary, accepts, vocabulary, walk

PLACE = {
    "type": "object",
    "properties": {"at": {"type": "array", "items": {"type": "number"}, "maxItems": 3}, "near": {"type": "boolean"}},
    "required": ["at"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "look": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 2, "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 99},
            "unit": {"enum": ["c", "f"]},
            "code": {"type": "string", "pattern": "^[a-c]{2}[0-9]$"},
            "place": {"$ref": "#/$defs/place"},
            "again": {"type": "boolean"},
        },
        "required": ["city", "unit", "place"],
        "additionalProperties": False,
        "$defs": {"place": PLACE},
    },
    "wait": {"type": "object", "properties": {}, "additionalProperties": False},
    "stop": {
        "type": "object",
        "properties": {"why": {"type": "string", "maxLength": 9}},
        "additionalProperties": False,
    },
}
GUIDED = {name: Arguments(guided(schema, param="tools")) for name, schema in SCHEMAS.items()}
TOOLS = [Tool(name, schema) for name, schema in SCHEMAS.items()]
FORMATS = list({tool_format(name).name: tool_format(name) for name in TOOL_FORMATS}.values())
EACH = pytest.mark.parametrize("written", [*FORMATS, GENERIC], ids=lambda written: written.name)
SEEDS = pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 4), marks=pytest.mark.slow)], ids=["few", "many"]
)
# Ends of parts, which random tokens would hardly spell.
ENDS = [
    *("</parameter>", "\n</parameter>\n", "</parameter>\n", "</arg_value>", "</arg_value>\n", '"', '"}}', "}]"),
    *(
        "</｜DSML｜parameter>\n",
        "</｜DSML｜ parameter>\n",
        "<|close|>argument<|sep|>",
        '<|"|>',
        "<escape>",
        "<|end|><|start|>assistant",
    ),
]


def spellings(written: ToolFormat) -> list[Vocabulary]:
    """A tokenizer with a special token for each mark that can be one, and one without any."""
    single = [mark for mark in written.marks if re.fullmatch(r"<\S+>|\[\S+\]|｜\S+｜", mark)]
    return [vocabulary(*dict.fromkeys(single)), vocabulary()]


def message(written: ToolFormat, text: str, tools: Sequence[Tool] = TOOLS) -> ReadMessage:
    return read(parser(written, None, tools, prompt=""), [text])


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


FREE = {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "boolean"}, "how": {}}
FREELY = {
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=city>\n7\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>look\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="look">\n<parameter name="days">3</parameter>\n'
    '<parameter name="city">7</parameter>\n</invoke>\n</minimax:tool_call>',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="city" string="true">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "pythonic": '[look(days=3, city="7")]',
    "gemma4": '<|tool_call>call:look{days:3,city:<|"|>7<|"|>}<tool_call|>',
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"days": 3, "city": "7"}}\n</tool_call>',
}


@pytest.mark.parametrize("name", FREELY)
def test_a_free_call_is_in_the_model_s_own_notation(name: str) -> None:
    written, tools = tool_format(name), [Tool("look", {"type": "object", "properties": FREE})]
    for words in spellings(written):
        arguments = {"look": Arguments(ANY_OBJECT, tuple(FREE))}
        grammar = written.grammar(arguments, parallel=False, token_id=words.token_id)
        assert accepts(words, grammar, FREELY[name])
        [call] = message(written, FREELY[name], tools).calls
        assert call.value == {"days": 3, "city": "7"}


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


NATIVE = {
    "hermes": '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "stop", "parameters": {"why": "no"}}; {"name": "wait", "parameters": {}}',
    "mistral": '[TOOL_CALLS]stop[ARGS]{"why": "no"}[TOOL_CALLS]wait[ARGS]{}',
    "mistral_v3": '[TOOL_CALLS] [{"name": "wait", "arguments": {}}, {"name": "stop", "arguments": {}}]',
    "qwen3_coder": "<tool_call>\n<function=stop>\n<parameter=why>\nno\n</parameter>\n</function>\n</tool_call>",
    "openai": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.wait <|constrain|>json<|message|>{}",
    "glm45": "<tool_call>stop\n<arg_key>why</arg_key>\n<arg_value>no</arg_value>\n</tool_call>",
    "glm47": "<tool_call>wait</tool_call><tool_call>stop<arg_key>why</arg_key><arg_value>no</arg_value></tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.wait:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "llama4_pythonic": '[stop(why="no"), wait()]',
    "gemma4": '<|tool_call>call:stop{why:<|"|>no<|"|>}<tool_call|><|tool_call>call:wait{}<tool_call|>',
    "functiongemma": "<start_function_call>call:stop{why:<escape>no<escape>}<end_function_call>",
}


@pytest.mark.parametrize("name", NATIVE)
def test_what_a_model_writes_by_itself_is_let_through(name: str) -> None:
    written = tool_format(name)
    for words in spellings(written):
        grammar = written.grammar(GUIDED, parallel=True, token_id=words.token_id)
        assert accepts(words, grammar, NATIVE[name])
        assert accepts(words, grammar, "\n\n" + NATIVE[name]) or name == "openai"


def test_harmony_s_answer_is_a_document_or_a_call_behind_reasoning() -> None:
    written, schema = tool_format("openai"), guided(PLACE, param="response_format")
    document = '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"at": [1]}'
    for words in spellings(written):
        calls = written.grammar(GUIDED, parallel=False, token_id=words.token_id)
        either = or_answer(calls, schema, words.token_id)
        assert accepts(words, answer_grammar(schema, words.token_id), document)
        assert accepts(words, either, document) and accepts(words, either, NATIVE["openai"])
        assert not accepts(words, calls, document)
        assert not accepts(words, either, document.replace("1", "x"))
