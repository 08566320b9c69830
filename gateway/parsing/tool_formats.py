"""The formats of calls, a row each, under the names of vLLM's tool parsers."""

from gateway.parsing.json_calls import JsonCalls
from gateway.parsing.tool_format import MarkedFormat, ToolFormat

# For models without a format of their own, whose calls are forced: the whole text is a JSON list of calls.
GENERIC: ToolFormat = MarkedFormat(
    "json_list", JsonCalls(arguments_key="parameters"), opens=(), bare=True, head="[", between=", ", tail="]"
)

_ROWS: tuple[MarkedFormat, ...] = (
    MarkedFormat(
        "hermes",
        JsonCalls(before="<tool_call>\n", after="\n</tool_call>"),
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        between="\n",
    ),
)
_ALIASES = {"qwen25": "hermes", "qwen": "hermes"}

_FORMATS: dict[str, ToolFormat] = {row.name: row for row in _ROWS}
TOOL_FORMATS = tuple(sorted([*_FORMATS, *_ALIASES]))


def tool_format(name: str) -> ToolFormat:
    """Raises KeyError for a name that is not in TOOL_FORMATS."""
    return _FORMATS[_ALIASES.get(name, name)]
