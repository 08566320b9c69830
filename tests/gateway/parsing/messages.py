"""Runs parsers over whole texts, and joins what they yield."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, MessageParser, ReasoningText


@dataclass
class ReadCall:
    name: str
    id: str | None
    arguments: str = ""
    complete: bool = field(default=False, compare=False)

    @property
    def value(self) -> Any:
        """The arguments; their text if it is not JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


@dataclass
class ReadMessage:
    reasoning: str = ""
    content: str = ""
    calls: list[ReadCall] = field(default_factory=list)


def read(parser: MessageParser, parts: Iterable[str], *, cut: bool = False) -> ReadMessage:
    """The message of a text that arrives in `parts`, and was `cut` by the limit of tokens."""
    message = ReadMessage()
    for piece in [*(piece for part in parts for piece in parser.push(part)), *parser.finish(cut=cut)]:
        match piece:
            case ReasoningText(text):
                message.reasoning += text
            case ContentText(text):
                message.content += text
            case CallBegin(index, name, id):
                assert index == len(message.calls)
                message.calls.append(ReadCall(name, id))
            case CallArguments(index, text):
                assert index == len(message.calls) - 1
                message.calls[index].arguments += text
            case CallEnd(index):
                assert index == len(message.calls) - 1
                message.calls[index].complete = True
    return message
