"""Which formats a model writes, told from its chat template and its vocabulary.

Rules are tried in order, the specific before the generic; the first that holds decides. Where none does, calls and
reasoning are not looked for: the text is content.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.reasoning_formats import reasoning_format
from gateway.parsing.tool_format import ToolFormat
from gateway.parsing.tool_formats import tool_format


@dataclass(frozen=True, slots=True)
class _Rule:
    """texts: all of them are in the template; tokens: all of them are in the vocabulary; without: none is in it."""

    format: str
    texts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def holds(self, template: str, known_token: Callable[[str], bool]) -> bool:
        return (
            all(text in template for text in self.texts)
            and not any(text in template for text in self.without)
            and all(map(known_token, self.tokens))
        )


_TOOLS = (_Rule("hermes", texts=("<tool_call>", "tojson"), without=("<function=",)),)
_REASONING = (_Rule("qwen3", texts=("<think>", "</think>")),)


def detect(
    template: str | None, known_token: Callable[[str], bool]
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """The formats of a model.

    Args:
        template: its chat template.
        known_token: whether a text is one token of its vocabulary.
    """
    template = template or ""
    tools = next((rule.format for rule in _TOOLS if rule.holds(template, known_token)), None)
    reasoning = next((rule.format for rule in _REASONING if rule.holds(template, known_token)), None)
    return (tool_format(tools) if tools else None, reasoning_format(reasoning) if reasoning else None)
