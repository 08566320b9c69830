"""Tools whose calls are forced by grammar, in every format, and how what comes is read."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.grammar.json_schema import guided
from gateway.parsing.calls import Arguments
from gateway.parsing.parser import parser
from gateway.parsing.pieces import Tool
from gateway.parsing.tool_format import ToolFormat
from gateway.parsing.tool_formats import GENERIC, TOOL_FORMATS, tool_format
from tests.gateway.parsing.messages import ReadMessage, read
from tests.gateway.parsing.walks import Vocabulary, vocabulary

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
# Arguments that are declared and not held to a schema, and calls as models write them by themselves.
FREE = {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "boolean"}, "how": {}}
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


def spellings(written: ToolFormat) -> list[Vocabulary]:
    """A tokenizer with a special token for each mark that can be one, and one without any."""
    single = [mark for mark in written.marks if re.fullmatch(r"<\S+>|\[\S+\]|｜\S+｜", mark)]
    return [vocabulary(*dict.fromkeys(single)), vocabulary()]


def message(written: ToolFormat, text: str, tools: Sequence[Tool] = TOOLS) -> ReadMessage:
    return read(parser(written, None, tools, prompt=""), [text])
