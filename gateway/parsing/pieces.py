"""What a model's text turns out to be, piece by piece: reasoning, content, or the calls of tools.

A parser is fed the running text of one choice. Joined, the pieces are the same wherever the text was cut.
"""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, `{}` for none."""

    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call whose name is complete. `index` counts the calls of a message from 0.

    id: as the model wrote it; None where its format has no ids.
    """

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments of a call are complete. A call that was cut off, or went wrong behind its name, has no end."""

    index: int


Piece = ReasoningText | ContentText | CallBegin | CallArguments | CallEnd


class MessageParser(Protocol):
    """Reads one choice."""

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain now; what may still become a mark is held back."""
        ...

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The rest, once the text has ended, wherever it has. A call without a whole name is text, as what is no call
        always is; where the limit of tokens `cut` the text it would have become a call, and is dropped.
        """
        ...
