"""Texts that no model means: any of them is read, cut or whole, to the same message, in time linear in its length."""

import random
import time
from collections.abc import Iterator
from dataclasses import astuple

import pytest

from gateway.parsing.parser import parser
from gateway.parsing.pieces import CallBegin, ContentText, Tool
from gateway.parsing.reasoning_formats import REASONING_FORMATS, reasoning_format
from gateway.parsing.tool_formats import GENERIC, TOOL_FORMATS, tool_format
from tests.gateway.parsing.messages import ReadMessage, read

TOOLS = [Tool("look", {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}})]
FRAGMENTS = [
    *("{", "}", "[", "]", '"', ":", ",", "\\", " ", "\n", "(", ")", "<", "</", ">", "'", '"""', "1", "null", "é", "x"),
    *(
        '"name": "look"',
        '"arguments": ',
        '{"at": "x"}',
        "look",
        "look(",
        "at=",
        "functions.",
        ":0",
        "to=functions.look",
    ),
    *(
        "call:look{",
        '{"name": "look", "arguments": {"at": "y"}}',
        "<arg_key>at</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *("<parameter=at>", "</parameter>", '<invoke name="look">', "</invoke>", "</function>", "assistant", "analysis"),
]
NAMES = sorted({tool_format(name).name for name in TOOL_FORMATS})


def texts(name: str, count: int) -> Iterator[tuple[str, random.Random]]:
    draw = random.Random(name)
    marks = [*tool_format(name).marks, "<think>", "</think>"]
    for _ in range(count):
        parts = [draw.choice(draw.choice([marks, FRAGMENTS])) for _ in range(draw.randrange(1, 24))]
        yield "".join(part[: draw.randrange(len(part) + 1)] if draw.random() < 0.1 else part for part in parts), draw


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_the_same_message_however_it_is_cut(name: str) -> None:
    for text, draw in texts(name, 60):
        reasoning = draw.choice([None, *REASONING_FORMATS])
        written = reasoning_format(reasoning) if reasoning else None
        prompt = draw.choice(["", "<think>\n", "<think>\n\n</think>"])
        at = draw.randrange(len(text) + 1)
        for cut in (False, True):
            whole, each, two = (
                read(parser(tool_format(name), written, TOOLS, prompt=prompt), parts, cut=cut)
                for parts in ([text], list(text), [text[:at], text[at:]])
            )
            assert whole == each == two, text


HALVES = {
    "hermes": [
        r'<tool_call>{"name": "look\ud83d", "id": "\ud83d", "arguments": {}}</tool_call>',
        r'<tool_call>{"name": "look", "arguments": "{\ud83d}"}</tool_call>',
        r'<tool_call>{"arguments": "{\ud83d}", "name": "look"}</tool_call>',
    ],
    "pythonic": [r'[look(at="\ud83d")]', r'[look(at={"\ud83d": ["\ud83d"]})]'],
    "mistral": [r'[TOOL_CALLS][{"name": "\ud83d", "arguments": {}, "id": "\ud83d"}]'],
    "qwen3_coder": [r"<tool_call><function=look><parameter=at>&#xd83d; \ud83d</parameter></function></tool_call>"],
    "minimax_m2": [r'<minimax:tool_call><invoke name="&#xd83d;">{"\ud83d": "\ud83d"}</invoke></minimax:tool_call>'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in HALVES.items() for text in texts])
def test_half_a_character_that_a_call_spells_can_be_answered(name: str, text: str) -> None:
    reading = parser(tool_format(name), None, TOOLS, prompt="")
    pieces = [*reading.push(text), *reading.finish()]
    assert any(isinstance(piece, CallBegin) for piece in pieces)
    for piece in pieces:
        for value in astuple(piece):
            str(value).encode()


@pytest.mark.parametrize("name", ["llama3_json", "xlam", "json_list"])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", ',
        '{"city": ',
        '{"type": "x", "age": ',
        '{"name": 5, ',
        '{"name": {"first": ',
        '{"id": "1", "names": ',
    ],
)
def test_a_document_is_no_longer_held_back_once_it_is_no_call_of_a_tool(name: str, text: str) -> None:
    written = GENERIC if name == GENERIC.name else tool_format(name)
    for opening in (text, f"[{text}"):
        reading = parser(written, None, TOOLS, prompt="")
        assert reading.push(opening) == [ContentText(opening.rstrip())]
        assert reading.push('"Rome", ') == [ContentText(opening[len(opening.rstrip()) :] + '"Rome",')]


FLOODS = [
    "<",
    " ",
    "\n",
    "[",
    "{",
    '"',
    "\\",
    "<tool_call>",
    '<tool_call>{"a": ["',
    "</parameter> ",
    '{"a":',
    "look(",
    "[look(",
    "<function_calls>f(",
    "<function_calls>f('",
]
OPENINGS = {
    "hermes": '<tool_call>{"name": "look", "arguments": ',
    "llama3_json": '{"parameters": ',
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=n>\n",
    "glm45": "<tool_call>look\n<arg_key>at</arg_key><arg_value>",
    "pythonic": "[look(at=",
    "olmo3": "<function_calls>look(at=",
    "gemma4": "<|tool_call>call:look",
    "mistral": "[TOOL_CALLS]",
    "openai": "<|channel|>",
}


@pytest.mark.parametrize("close", ["</tool_call>", ""])
@pytest.mark.parametrize(
    ("name", "begun"),
    [("glm45", "<tool_call>look\n<arg_key>"), ("qwen3_coder", "<tool_call>\n<function=look>\n<parameter=")],
)
def test_a_key_without_end_is_given_up_at_the_same_place_however_it_is_cut(name: str, begun: str, close: str) -> None:
    text = f"{begun}{'k' * 2000}{close}Hello."
    whole, each = (read(parser(tool_format(name), None, TOOLS, prompt=""), parts) for parts in ([text], [*text]))
    assert whole == each and whole.content == ("Hello." if close else "")


def seconds(name: str, text: str) -> float:
    reading = parser(tool_format(name), None, TOOLS, prompt="")
    began = time.process_time()
    read(reading, (text[at : at + 4] for at in range(0, len(text), 4)))
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["", "open"])
@pytest.mark.parametrize("name", OPENINGS)
def test_time_grows_with_the_length_and_not_with_its_square(name: str, opening: str) -> None:
    """CPU time of 100,000 characters, 4 at a time: 25,000 steps of a few microseconds each."""
    for flood in FLOODS:
        text = (OPENINGS[name] if opening else "") + flood * (100_000 // len(flood))
        assert min(seconds(name, text) for _ in range(2)) < 2, flood


UNENDED = "\\{\"<function_calls>f('"


def test_a_call_that_never_ends_is_not_read_again_for_every_mark_in_it() -> None:
    assert seconds("olmo3", UNENDED * (300_000 // len(UNENDED))) < 2  # some 10 s if it were


@pytest.mark.parametrize("text", ["<function_calls>f('" * 150, UNENDED * 200 + "<function_calls>look(n=1)"])
def test_what_is_not_read_again_does_not_depend_on_cuts(text: str) -> None:
    def message(*parts: str) -> ReadMessage:
        return read(parser(tool_format("olmo3"), None, TOOLS, prompt=""), parts)

    assert message(text) == message(*text) == message(text[:1500], text[1500:])
