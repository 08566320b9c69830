"""The formats in which the served model writes calls of tools and its reasoning: named by options, else detected."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config.options import Options
from gateway.parsing.detection import detect
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.reasoning_formats import REASONING_FORMATS, reasoning_format
from gateway.parsing.tool_format import ToolFormat
from gateway.parsing.tool_formats import GENERIC, TOOL_FORMATS, tool_format
from jaxengine.options.option import UsageError
from jaxengine.options.suggestion import suggestion

OFF = "none"


@dataclass(frozen=True)
class Formats:
    """tools: None where calls that are not forced are not looked for."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def forced(self) -> ToolFormat:
        """The format of calls that a grammar forces."""
        return self.tools or GENERIC

    @property
    def names(self) -> dict[str, str]:
        """By option, for people."""
        tools, reasoning = self.tools, self.reasoning
        return {
            "tool_call_parser": tools.name if tools else OFF,
            "reasoning_parser": reasoning.name if reasoning else OFF,
        }


def check_parsers(options: Options) -> None:
    """Raises UsageError for a parser that there is none of."""
    known = {"tool-call-parser": TOOL_FORMATS, "reasoning-parser": REASONING_FORMATS}
    given = {"tool-call-parser": options.tool_call_parser, "reasoning-parser": options.reasoning_parser}
    for name, parsers in known.items():
        if given[name] not in (None, OFF, *parsers):
            near = suggestion(str(given[name]), parsers)
            raise UsageError(f"--{name} {given[name]!r} must be {OFF} or one of {', '.join(parsers)}{near}")


def formats_of(template: str | None, known_token: Callable[[str], bool], options: Options) -> Formats:
    """The formats of a model with this chat template. One that has no format of calls is told to write them as JSON.

    known_token: whether a text is one token of its vocabulary.
    """
    tools, reasoning = detect(template, known_token)
    named_tools, named_reasoning = options.tool_call_parser, options.reasoning_parser
    if named_tools is not None:
        tools = None if named_tools == OFF else tool_format(named_tools)
    elif tools is None:
        tools = GENERIC
    if named_reasoning is not None:
        reasoning = None if named_reasoning == OFF else reasoning_format(named_reasoning)
    return Formats(tools, reasoning)
