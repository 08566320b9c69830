"""The formats of calls, a row each, under the names of vLLM's tool parsers.

What the models write is from their chat templates, and from the cases of tests/goldens/tool_calls.
"""

import re
from dataclasses import replace

from gateway.parsing.calls import Rule
from gateway.parsing.gemma_calls import GemmaCalls
from gateway.parsing.harmony import HarmonyFormat
from gateway.parsing.json_calls import JsonCalls
from gateway.parsing.named_json import NamedJson
from gateway.parsing.python_calls import PythonCalls
from gateway.parsing.tagged_calls import Spelling, TaggedCalls
from gateway.parsing.tool_format import MarkedFormat, ToolFormat

_LIST = JsonCalls()
_PARAMETERS = JsonCalls(arguments_key="parameters")

_MISTRAL = NamedJson(
    re.compile(r"(?P<name>[^\[\]{}\s]+)\s*(?:\[CALL_ID\](?P<id>\w+))?\s*(?:\[ARGS\])?\s*"),
    before="[TOOL_CALLS]",
    middle=("[ARGS]",),
    objects=_LIST,
)

# For models without a format of their own, whose calls are forced: the whole text is a JSON list of calls.
GENERIC: ToolFormat = MarkedFormat("json_list", _PARAMETERS, opens=(), bare=True, head="[", between=", ", tail="]")


def _deepseek(name: str, body: NamedJson, between: str = "") -> MarkedFormat:
    return MarkedFormat(
        name,
        body,
        opens=("<｜tool▁call▁begin｜>",),
        sections=("<｜tool▁calls▁begin｜>",),
        closes=("```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        inner=("<｜tool▁sep｜>",),
        head="<｜tool▁calls▁begin｜>",
        between=between,
        tail="<｜tool▁calls▁end｜>",
    )


def _dsml(name: str, section: str, space: str = "") -> MarkedFormat:
    """DeepSeek's own markup: the same tags, whose names changed from version to version."""
    tag = f"<｜DSML｜{space}"
    end = f"</｜DSML｜{space}"
    key_end = '" string="{string}">'
    return MarkedFormat(
        name,
        TaggedCalls(
            name_ends=("/>", ">"),
            key=f'{tag}parameter name="',
            key_end=">",
            value_ends=(f"{end}parameter>",),
            end=f"{end}invoke>",
            writes=Spelling(
                f'{tag}invoke name="',
                ('">\n',),
                f'{tag}parameter name="',
                key_end,
                f"{end}parameter>\n",
                f"{end}invoke>\n",
            ),
        ),
        opens=(f'{tag}invoke name="',),
        sections=(f"<｜DSML｜{section}>",),
        closes=(f"</｜DSML｜{section}>",),
        inner=("｜DSML｜",),
        head=f"<｜DSML｜{section}>\n",
        tail=f"</｜DSML｜{section}>",
    )


def _glm(name: str, line: str) -> MarkedFormat:
    return MarkedFormat(
        name,
        TaggedCalls(
            name_ends=("\n",),
            key="<arg_key>",
            key_end="</arg_key>",
            value="<arg_value>",
            value_ends=("</arg_value>",),
            cuts=("</tool_call>",),
            after_cuts=("<tool_call>", "<|observation|>"),
            end="</tool_call>",
            writes=Spelling(
                "<tool_call>", (line,) if line else (), "<arg_key>", f"</arg_key>{line}<arg_value>",
                f"</arg_value>{line}", "</tool_call>",
            ),
        ),
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        between=line,
    )  # fmt: skip


def _functions(name: str, tag: str) -> MarkedFormat:
    """Qwen3-Coder's tags, in a tag of their own."""
    return MarkedFormat(
        name,
        TaggedCalls(
            name_ends=(">",),
            key="<parameter=",
            key_end=">",
            value_ends=("\n</parameter>", "</parameter>"),
            cuts=("\n<parameter=", "\n</function>"),
            end="</function>",
            lines=True,
            writes=Spelling(
                f"<{tag}>\n<function=", (">\n",), "<parameter=", ">\n", "\n</parameter>\n", f"</function>\n</{tag}>"
            ),
        ),
        opens=("<function=",),
        sections=(f"<{tag}>",),
        closes=(f"</{tag}>",),
        between="\n",
    )


_ROWS = (
    MarkedFormat(
        "hermes",
        JsonCalls(before="<tool_call>\n", after="\n</tool_call>"),
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        between="\n",
    ),
    MarkedFormat(
        "llama3_json",
        JsonCalls(arguments_key="parameters", separator=";"),
        opens=("<|python_tag|>",),
        bare=True,
        between="; ",
    ),
    MarkedFormat(
        "mistral",
        _MISTRAL,
        opens=("[TOOL_CALLS]",),
        inner=("[ARGS]", "[CALL_ID]"),
    ),
    MarkedFormat(
        "mistral_v3",  # what the versions before v11 write; all are read alike
        replace(_MISTRAL, writes_objects=True),
        opens=("[TOOL_CALLS]",),
        inner=("[ARGS]", "[CALL_ID]"),
        head="[TOOL_CALLS] [",
        between=", ",
        tail="]",
    ),
    _functions("qwen3_coder", "tool_call"),
    _functions("seed_oss", "seed:tool_call"),
    _deepseek(
        "deepseek_v3",
        NamedJson(
            re.compile(r"\s*function<｜tool▁sep｜>(?P<name>[^\n<]+)\s*```(?:json)?\s*"),
            before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            middle=("\n```json\n",),
            after="\n```<｜tool▁call▁end｜>",
        ),
        between="\n",
    ),
    _deepseek(
        "deepseek_v31",
        NamedJson(
            re.compile(r"(?P<name>[^\n<]+)<｜tool▁sep｜>\s*"),
            before="<｜tool▁call▁begin｜>",
            middle=("<｜tool▁sep｜>",),
            after="<｜tool▁call▁end｜>",
        ),
    ),
    _dsml("deepseek_v32", "function_calls"),
    _dsml("deepseek_v4", "tool_calls"),
    _dsml("deepseek_v41", " calls", " "),
    _glm("glm45", "\n"),
    _glm("glm47", ""),
    MarkedFormat(
        "kimi_k2",
        NamedJson(
            re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*"),
            before="<|tool_call_begin|>functions.",
            middle=(":", Rule("/[0-9]{1,4}/"), "<|tool_call_argument_begin|>"),
            after="<|tool_call_end|>",
        ),
        opens=("<|tool_call_begin|>",),
        sections=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        closes=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        inner=("<|tool_call_argument_begin|>",),
        head="<|tool_calls_section_begin|>",
        tail="<|tool_calls_section_end|>",
    ),
    MarkedFormat(
        "kimi_k3",
        TaggedCalls(
            name_ends=("<|sep|>",),
            key='<|open|>argument key="',
            key_end="<|sep|>",
            value_ends=("<|close|>argument<|sep|>",),
            end="<|close|>call<|sep|>",
            escapes=True,
            writes=Spelling(
                '<|open|>call tool="',
                ('" index="', Rule("/[0-9]{1,4}/"), '"<|sep|>'),
                '<|open|>argument key="',
                '" type="{type}"<|sep|>',
                "<|close|>argument<|sep|>",
                "<|close|>call<|sep|>",
            ),
        ),
        opens=('<|open|>call tool="',),
        sections=("<|open|>tools<|sep|>",),
        closes=("<|close|>tools<|sep|>",),
        inner=("<|open|>", "<|close|>", "<|sep|>"),
        noise=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        head="<|open|>tools<|sep|>",
        tail="<|close|>tools<|sep|><|close|>message<|sep|>",
    ),
    MarkedFormat(
        "minimax_m2",
        TaggedCalls(
            name_ends=(">",),
            key='<parameter name="',
            key_end=">",
            value_ends=("</parameter>",),
            end="</invoke>",
            writes=Spelling('<invoke name="', ('">\n',), '<parameter name="', '">', "</parameter>\n", "</invoke>\n"),
        ),
        opens=('<invoke name="',),
        sections=("<minimax:tool_call>",),
        closes=("</minimax:tool_call>",),
        head="<minimax:tool_call>\n",
        tail="</minimax:tool_call>",
    ),
    MarkedFormat(
        "granite", _LIST, opens=("<|tool_call|>", "<tool_call>"), head="<|tool_call|>[", between=", ", tail="]"
    ),
    MarkedFormat(
        "granite-20b-fc",
        JsonCalls(before="<function_call> "),
        opens=("<function_call>",),
        between="\n",
    ),
    MarkedFormat(
        "phi4_mini_json",
        _LIST,
        opens=("<|tool_call|>", "functools"),
        closes=("<|/tool_call|>",),
        head="<|tool_call|>[",
        between=", ",
        tail="]<|/tool_call|>",
    ),
    MarkedFormat(
        "cohere_command3",
        JsonCalls(name_key="tool_name", arguments_key="parameters"),
        opens=("<|START_ACTION|>",),
        closes=("<|END_ACTION|>",),
        noise=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        head="<|START_ACTION|>[\n",
        between=",\n",
        tail="\n]<|END_ACTION|>",
    ),
    MarkedFormat(
        "internlm",
        JsonCalls(before="<|action_start|><|plugin|>\n", arguments_key="parameters", after="<|action_end|>"),
        opens=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        closes=("<|action_end|>",),
        inner=("<|action_start|>", "<|plugin|>"),
        between="\n",
    ),
    MarkedFormat(
        "jamba",
        _LIST,
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        head="<tool_calls>[\n",
        between=",\n",
        tail="\n]</tool_calls>",
    ),
    MarkedFormat(
        "nemotron_json",  # the name of the plugin for vLLM that comes with Nemotron Nano 2
        _LIST,
        opens=("<TOOLCALL>",),
        closes=("</TOOLCALL>",),
        head="<TOOLCALL>[",
        between=", ",
        tail="]</TOOLCALL>",
    ),
    MarkedFormat(
        "hunyuan_a13b",
        _LIST,
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        head="<tool_calls>[",
        between=", ",
        tail="]</tool_calls>",
    ),
    MarkedFormat(
        "xlam",
        _LIST,
        opens=("[TOOL_CALLS]", "<tool_call>"),
        closes=("</tool_call>",),
        bare=True,
        head="[",
        between=", ",
        tail="]",
    ),
    MarkedFormat("pythonic", PythonCalls(), opens=(), bare=True, head="[", between=", ", tail="]"),
    MarkedFormat(
        "llama4_pythonic",
        PythonCalls(),
        opens=("<|python_start|>",),
        closes=("<|python_end|>",),
        bare=True,
        head="[",
        between=", ",
        tail="]",
    ),
    MarkedFormat(
        "olmo3",
        PythonCalls(),
        opens=("<function_calls>",),
        closes=("</function_calls>",),
        head="<function_calls>",
        between="\n",
        tail="</function_calls>",
    ),
    MarkedFormat(
        "lfm2",
        PythonCalls(),
        opens=("<|tool_call_start|>",),
        closes=("<|tool_call_end|>",),
        head="<|tool_call_start|>[",
        between=", ",
        tail="]<|tool_call_end|>",
    ),
    MarkedFormat(
        "gemma4",
        GemmaCalls('<|"|>', "<|tool_call>", "<tool_call|>"),
        opens=("<|tool_call>",),
        closes=("<tool_call|>",),
        inner=('<|"|>',),
    ),
    MarkedFormat(
        "functiongemma",
        GemmaCalls("<escape>", "<start_function_call>", "<end_function_call>"),
        opens=("<start_function_call>",),
        closes=("<end_function_call>",),
        inner=("<escape>",),
    ),
)
_ALIASES = {
    **dict.fromkeys(("qwen", "qwen25", "granite4", "ernie45"), "hermes"),
    **dict.fromkeys(("qwen3_xml", "nemotron3", "step3p5", "mimo"), "qwen3_coder"),
    "llama4_json": "llama3_json",
}

_FORMATS: dict[str, ToolFormat] = {row.name: row for row in _ROWS} | {"openai": HarmonyFormat()}
TOOL_FORMATS = tuple(sorted([*_FORMATS, *_ALIASES]))


def tool_format(name: str) -> ToolFormat:
    """Raises KeyError for a name that is not in TOOL_FORMATS."""
    return _FORMATS[_ALIASES.get(name, name)]
