"""What models write of which no outputs were collected, as their chat templates spell it, and what is odd in each."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.parsing.parser import parser
from gateway.parsing.pieces import Tool
from gateway.parsing.reasoning_formats import reasoning_format
from gateway.parsing.tool_formats import tool_format
from tests.gateway.parsing.messages import ReadCall, ReadMessage, read

TOOLS = [
    Tool("look", {"type": "object", "properties": {"at": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("wait", {"type": "object", "properties": {}}),
]
LOOK, WAIT = ReadCall("look", None, '{"at": "Rome"}'), ReadCall("wait", None, "{}")
JSON_LIST = '[{"name": "look", "arguments": {"at": "Rome"}}, {"name": "wait", "arguments": {}}]'
PYTHON = 'look(at="Rome"), wait()'
TEXTS = {
    "granite": f"<|tool_call|>{JSON_LIST}",
    "granite-20b-fc": '<function_call> {"name": "look", "arguments": {"at": "Rome"}}\n'
    '<function_call> {"name": "wait", "arguments": {}}',
    "phi4_mini_json": f"<|tool_call|>{JSON_LIST}<|/tool_call|>",
    "cohere_command3": '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "look", "parameters": {"at": "Rome"}},\n'
    ' {"tool_call_id": "1", "tool_name": "wait", "parameters": {}}\n]<|END_ACTION|>',
    "internlm": '<|action_start|><|plugin|>\n{"name": "look", "parameters": {"at": "Rome"}}<|action_end|>\n'
    '<|action_start|><|plugin|>\n{"name": "wait", "parameters": {}}<|action_end|>',
    "jamba": '<tool_calls>[\n    {"name": "look", "arguments": {"at": "Rome"}},\n    {"name": "wait"}\n]</tool_calls>',
    "nemotron_json": f"<TOOLCALL>{JSON_LIST}</TOOLCALL>",
    "hunyuan_a13b": f"<tool_calls>{JSON_LIST}</tool_calls>",
    "xlam": JSON_LIST,
    "pythonic": f"[{PYTHON}]",
    "olmo3": '<function_calls>look(at="Rome")\nwait()</function_calls>',
    "lfm2": f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>",
    "functiongemma": "<start_function_call>call:look{at:<escape>Rome<escape>}<end_function_call>"
    "<start_function_call>call:wait{}<end_function_call>",
    "seed_oss": "<seed:tool_call>\n<function=look>\n<parameter=at>Rome</parameter>\n</function>\n</seed:tool_call>\n"
    "<seed:tool_call>\n<function=wait>\n</function>\n</seed:tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="look">\n<parameter name="at">Rome</parameter>\n</invoke>\n'
    '<invoke name="wait">\n</invoke>\n</minimax:tool_call>',
}
IDS = {"cohere_command3": ("0", "1")}


def message(name: str, *parts: str, reasoning: str | None = None, prompt: str = "") -> ReadMessage:
    written = reasoning_format(reasoning) if reasoning else None
    return read(parser(tool_format(name), written, TOOLS, prompt=prompt), parts)


@pytest.mark.parametrize("name", TEXTS)
def test_two_calls_are_read_wherever_the_text_is_cut(name: str) -> None:
    ids = IDS.get(name, (None, None))
    expected = ReadMessage(calls=[replace(LOOK, id=ids[0]), replace(WAIT, id=ids[1])])
    text = TEXTS[name]
    for at in range(len(text)):
        assert message(name, text[:at], text[at:]) == expected
    assert message(name, *text) == expected


@pytest.mark.parametrize("name", TEXTS)
def test_text_without_a_call_is_content(name: str) -> None:
    for text in ("Hello <b>[1]</b>.", '{"a": 1} is JSON', "[note] f(x) = {y}", "  \n"):
        assert message(name, *text) == ReadMessage(content=text)


@pytest.mark.parametrize(
    "text", ['{"name": "Ann", "age": 3}', '{"name": "look"}', '{"look": {}}', '{"name": "look", "par']
)
def test_bare_json_is_a_call_only_if_it_names_a_known_tool_and_arguments(text: str) -> None:
    assert message("llama3_json", *text) == ReadMessage(content=text)


def test_bare_calls_may_follow_one_another() -> None:
    look, wait = '{"name": "look", "parameters": {"at": "Rome"}}', '{"name": "wait", "parameters": {}}'
    for text in (f"{look}; {wait}", f"{look};{wait}", f"{look}\n{wait}", f"<|python_tag|>{look}; {wait}"):
        assert message("llama3_json", *text).calls == [LOOK, WAIT]


def test_arguments_that_come_before_the_name_are_kept_until_it_is_known() -> None:
    text = '<tool_call>{"arguments": {"at": "Rome"}, "name": "look"}</tool_call>'
    assert message("hermes", *text).calls == [LOOK]


@pytest.mark.parametrize("arguments", ['"{\\"at\\": \\"Rome\\"}"', '{"at": "Rome"}'])
def test_arguments_in_a_string_are_what_the_string_holds(arguments: str) -> None:
    assert message("hermes", f'<tool_call>{{"name": "look", "arguments": {arguments}}}</tool_call>').calls == [LOOK]


@pytest.mark.parametrize("schema", [{"type": [{}, []]}, {"type": 5}, {"enum": 5}, {"anyOf": [5]}, {"$ref": []}, [], 5])
def test_a_schema_that_is_none_types_no_value(schema: Any) -> None:
    tools = [Tool("look", {"type": "object", "properties": {"at": schema}})]
    text = "<tool_call>\n<function=look>\n<parameter=at>\nhere\n</parameter>\n</function>\n</tool_call>"
    [call] = read(parser(tool_format("qwen3_coder"), None, tools, prompt=""), [text]).calls
    assert call.value == {"at": "here"}


def test_plain_values_get_the_types_of_the_schema() -> None:
    def value(name: str, text: str) -> str:
        tags = f"<tool_call>\n<function=look>\n<parameter={name}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        return message("qwen3_coder", *tags).calls[0].arguments

    assert value("at", "3") == '{"at": "3"}'
    assert value("days", "3") == '{"days": 3}'
    assert value("days", "three") == '{"days": "three"}'
    assert value("unknown", "[1, 2]") == '{"unknown": [1, 2]}'
    assert value("unknown", "NaN") == '{"unknown": "NaN"}'
    assert value("at", 'a "b"\n</c>\\') == '{"at": "a \\"b\\"\\n</c>\\\\"}'


@pytest.mark.parametrize(
    "text",
    [
        "[look(1)]",
        "[look(**[])]",
        "[look(at=open('x'))]",
        "[look(at=1",
        "[look(at=[1,)]",
        "[other(at=1)]",
        "[look(at=1j)]",
    ],
)
def test_python_that_is_no_call_with_literals_is_content(text: str) -> None:
    assert message("pythonic", *text) == ReadMessage(content=text)


def test_python_literals_become_json() -> None:
    text = r"""[look(at='it\'s "x" \d', days=-2, a=None, b=[True, {'k': 1.5}], c='''d''', e=true)]"""
    expected = {"at": 'it\'s "x" \\d', "days": -2, "a": None, "b": [True, {"k": 1.5}], "c": "d", "e": True}
    assert message("pythonic", *text).calls[0].value == expected


def test_a_call_id_is_passed_on() -> None:
    kimi = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.wait:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    assert message("kimi_k2", *kimi).calls == [ReadCall("wait", "functions.wait:7", "{}")]
    assert message("mistral", "[TOOL_CALLS]wait[CALL_ID]abc123def[ARGS]{}").calls == [
        ReadCall("wait", "abc123def", "{}")
    ]


REASONING = {
    "deepseek_r1": ("<think>", "</think>\n\n"),
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "granite": ("Here is my thought process: ", "\nHere is my response: "),
    "mistral": ("[THINK]", "[/THINK]"),
    "kimi": ("◁think▷", "◁/think▷"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "hunyuan_a13b": ("<think>\n", "\n</think>\n<answer>\n"),
    "ernie45": ("<think>\n", "\n</think>\n\n<response>\n"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "gemma4": ("<|channel>thought\n", "\n<channel|>"),
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
}


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_and_answer_are_told_apart_wherever_the_text_is_cut(name: str) -> None:
    begin, end = REASONING[name]
    text = f"{begin}One <two>\n\nthree.{end}Four <five>."
    for at in range(len(text)):
        reading = parser(None, reasoning_format(name), (), prompt="<|assistant|>\n")
        assert read(reading, [text[:at], text[at:]]) == ReadMessage("One <two>\n\nthree.", "Four <five>.")


def test_gemma_s_keys_may_be_bare_between_marks_or_json() -> None:
    text = '<|tool_call>call:look{at:<|"|>Rome<|"|>,"da:\\"ys": 3,<|"|>x<|"|>:[{"a, b": null}]}<tool_call|>'
    expected = {"at": "Rome", 'da:"ys': 3, "x": [{"a, b": None}]}
    for at in range(len(text)):
        assert message("gemma4", text[:at], text[at:]).calls[0].value == expected
