"""The formats of reasoning, a row each, under the names of vLLM's reasoning parsers."""

from gateway.parsing.reasoning_format import ReasoningFormat

_THINK, _END = ("<think>",), ("</think>",)

_ROWS = (
    ReasoningFormat("deepseek_r1", _THINK, _END, implicit=True),
    ReasoningFormat("qwen3", _THINK, _END, ended_by_call=True),
)
_ALIASES: dict[str, str] = {}

_FORMATS = {row.name: row for row in _ROWS}
REASONING_FORMATS = tuple(sorted([*_FORMATS, *_ALIASES]))


def reasoning_format(name: str) -> ReasoningFormat:
    """Raises KeyError for a name that is not in REASONING_FORMATS."""
    return _FORMATS[_ALIASES.get(name, name)]
