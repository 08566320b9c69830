"""What every format has in common: where the text is cut, what is streamed when, what becomes of a text's end."""

from collections.abc import Sequence

import pytest

from gateway.parsing.parser import parser
from gateway.parsing.pieces import CallArguments, CallBegin, ContentText, Tool
from gateway.parsing.reasoning_formats import reasoning_format
from gateway.parsing.tool_formats import GENERIC, tool_format
from tests.gateway.parsing.messages import ReadCall, ReadMessage, read

TOOLS = [Tool("look", {"type": "object", "properties": {"at": {"type": "string"}}}), Tool("wait", {})]
HERMES = 'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "</tool_call>\\""}}\n</tool_call>\n'


def hermes(
    text: str | Sequence[str], prompt: str = "", reasoning: str | None = None, *, cut: bool = False
) -> ReadMessage:
    written = reasoning_format(reasoning) if reasoning else None
    parts = [text] if isinstance(text, str) else text
    return read(parser(tool_format("hermes"), written, TOOLS, prompt=prompt), parts, cut=cut)


def test_a_call_in_a_tag_is_read_with_its_arguments_as_written() -> None:
    assert hermes(HERMES) == ReadMessage("", "Let me see.", [ReadCall("look", None, '{"at": "</tool_call>\\""}')])


@pytest.mark.parametrize("at", range(len(HERMES)))
def test_every_cut_gives_the_same_message(at: int) -> None:
    assert hermes([HERMES[:at], HERMES[at:]]) == hermes(HERMES) == hermes(list(HERMES))


def test_arguments_stream_before_they_are_complete() -> None:
    reading = parser(tool_format("hermes"), None, TOOLS, prompt="")
    assert reading.push('<tool_call>{"name": "look", "arguments": {"at": "a') == [
        CallBegin(0, "look"),
        CallArguments(0, '{"at": "a'),
    ]
    assert reading.push("b") == [CallArguments(0, "b")]


def test_text_streams_up_to_what_may_become_a_mark() -> None:
    reading = parser(tool_format("hermes"), None, TOOLS, prompt="")
    assert reading.push("a <b> <tool") == [ContentText("a <b>")]
    assert reading.push("s>") == [ContentText(" <tools>")]


@pytest.mark.parametrize("text", ["<tool_call>no JSON</tool_call>", "<tool_call>{}</tool_call>", "a <tool_call>[1] b"])
def test_what_follows_a_mark_and_is_no_call_stays_text(text: str) -> None:
    assert hermes(text) == ReadMessage("", text)


def test_a_call_that_is_cut_off_keeps_what_was_streamed_and_is_not_complete() -> None:
    text = '<tool_call>{"name": "look", "arguments": {"at": "x"}'
    [whole], [cut] = hermes(text).calls, hermes(text[:-2]).calls
    assert (whole.arguments, whole.complete) == ('{"at": "x"}', True)
    assert (cut.arguments, cut.complete) == ('{"at": "x', False)


NAMELESS = ["<tool_call>", '<tool_call>{"name": "lo', '<tool_call>\n{"na', '<tool_call>{"arguments": {"at": "x"}, "na']


@pytest.mark.parametrize("text", NAMELESS)
def test_a_call_without_a_whole_name_is_text_unless_the_limit_cut_it(text: str) -> None:
    for parts in ([f"So{text}"], [*f"So{text}"]):
        assert hermes(parts) == ReadMessage("", f"So{text}")
        assert hermes(parts, cut=True) == ReadMessage("", "So")


@pytest.mark.parametrize("text", ["[", '[{"', '[{"name": "lo', '[{"name": "look'])
@pytest.mark.parametrize(
    ("forced", "cut", "content"), [(True, True, ""), (True, False, None), (False, True, None), (False, False, None)]
)
def test_without_a_mark_it_is_text_unless_the_limit_cut_what_must_be_a_call(
    text: str, forced: bool, cut: bool, content: str | None
) -> None:
    for parts in ([text], [*text]):
        reading = parser(GENERIC, None, TOOLS, prompt="", forced=forced)
        assert read(reading, parts, cut=cut) == ReadMessage(content=text if content is None else content)


def test_a_call_behind_one_without_a_whole_name_is_read() -> None:
    text = '<tool_call>{"name": <tool_call>{"name": "wait", "arguments": {}}</tool_call>'
    assert hermes(text) == ReadMessage("", '<tool_call>{"name":', [ReadCall("wait", None, "{}")])


@pytest.mark.parametrize("next", ['{"na', '{"name": 5}', '"x"', '{"name": "wait"', "nothing"])
def test_what_follows_a_call_in_its_list_and_is_none_is_text(next: str) -> None:
    call = '{"name": "look", "arguments": {"at": "x"}}'
    for name, mark in (("granite", "<|tool_call|>"), ("xlam", "")):
        message = read(parser(tool_format(name), None, TOOLS, prompt=""), f"{mark}[{call}, {next}")
        assert (message.content, message.calls) == (next, [ReadCall("look", None, '{"at": "x"}')])


def test_a_bare_list_that_begins_with_a_call_may_go_on_with_one_of_an_unknown_tool() -> None:
    text = '[{"name": "look", "arguments": {"at": "x"}}, {"name": "fly", "arguments": {}}]'
    assert [each.name for each in read(parser(tool_format("xlam"), None, TOOLS, prompt=""), text).calls] == [
        "look",
        "fly",
    ]


@pytest.mark.parametrize("name", ["json_list", "pythonic", "xlam", "llama3_json"])
@pytest.mark.parametrize("text", ["[]", "[ ]\n", "[,]"])
def test_an_empty_list_is_an_answer_where_calls_have_no_mark(name: str, text: str) -> None:
    written = GENERIC if name == GENERIC.name else tool_format(name)
    assert read(parser(written, None, TOOLS, prompt=""), text) == ReadMessage(content=text)


def test_a_tool_that_is_not_known_is_called_all_the_same() -> None:
    assert hermes('<tool_call>{"name": "fly", "arguments": {}}</tool_call>').calls == [ReadCall("fly", None, "{}")]


def test_whitespace_around_calls_is_dropped_unless_content_follows() -> None:
    call = '<tool_call>{"name": "wait"}</tool_call>'
    assert hermes(f"a \n{call}\n\n{call}\n").content == "a"
    assert hermes(f"a {call} b").content == "a  b"
    assert hermes("a \n").content == "a \n"


def test_reasoning_begins_where_the_prompt_or_the_text_opens_it() -> None:
    think = "Hm.\n</think>\n\nYes."
    expected = ReadMessage("Hm.", "Yes.")
    assert hermes(think, prompt="<|assistant|><think>\n", reasoning="qwen3") == expected
    assert hermes(f"<think>\n{think}", prompt="<|assistant|>", reasoning="qwen3") == expected
    assert hermes(think, prompt="<|assistant|>", reasoning="deepseek_r1") == expected
    assert hermes("Yes.", prompt="<think>\n\n</think>\n\n", reasoning="deepseek_r1") == ReadMessage("", "Yes.")


def test_without_an_end_mark_all_is_reasoning() -> None:
    assert hermes("Hm. </thin", prompt="<think>\n", reasoning="qwen3") == ReadMessage("Hm. </thin")


def test_a_call_ends_reasoning_and_the_mention_of_its_mark_does_not() -> None:
    call = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
    assert hermes(f"I use <tool_call> now.\n{call}", prompt="<think>", reasoning="qwen3") == ReadMessage(
        "I use <tool_call> now.", "", [ReadCall("wait", None, "{}")]
    )


def test_a_forced_list_of_calls_is_read_where_a_model_has_no_format() -> None:
    text = '[{"name": "look", "parameters": {"at": "x"}}, {"name": "wait", "parameters": {}}]'
    assert read(parser(GENERIC, None, TOOLS, prompt=""), list(text)).calls == [
        ReadCall("look", None, '{"at": "x"}'),
        ReadCall("wait", None, "{}"),
    ]
