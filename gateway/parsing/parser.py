"""The parsers of messages: reasoning first, then content and calls."""

from collections.abc import Sequence

from gateway.parsing.harmony import HarmonyFormat, HarmonyParser
from gateway.parsing.pieces import MessageParser, Tool
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.text_parser import TextParser
from gateway.parsing.tool_format import MarkedFormat, ToolFormat


def parser(
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    tools: Sequence[Tool],
    *,
    prompt: str,
    forced: bool = False,
) -> MessageParser:
    """A parser of the text that follows `prompt`, the rendered chat. Without a format its kind of piece is not read.
    Behind reasoning a `forced` text holds nothing but calls.
    """
    if isinstance(tool_format, HarmonyFormat) or (reasoning_format is not None and reasoning_format.harmony):
        return HarmonyParser(tools)
    assert tool_format is None or isinstance(tool_format, MarkedFormat)
    return TextParser(tool_format, reasoning_format, tools, prompt, forced=forced)
