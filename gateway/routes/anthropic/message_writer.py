"""The answer to a chat as Anthropic's message: its blocks, or the events that they grow by.

A block ends where another kind of piece begins, so a message is thinking, text and calls in the model's own order. Of
text around calls, what is only space makes no block.
"""

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from gateway.http.encoding import json_bytes
from gateway.http.strict_json import strict_json
from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText
from gateway.request.output import Finish, OutputDelta, OutputProcessor
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.message_reader import MessageReader

Fields = dict[str, Any]
STOP_REASONS = {
    Finish.LENGTH: "max_tokens",
    Finish.EOS: "end_turn",
    Finish.STOP: "stop_sequence",
    Finish.STOP_TOKEN: "end_turn",
}
# By the type of a block, its delta's type and the field of the delta that holds the text.
DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
INVALID = "INVALID_JSON"  # the key under which Anthropic has clients wrap arguments that are no JSON


@dataclass
class Block:
    """`start` is the block without its text, as a stream begins it."""

    start: Fields
    parts: list[str] = field(default_factory=list)
    complete: bool = False  # of a call: the model has written all of it

    @property
    def type(self) -> str:
        return str(self.start["type"])

    @property
    def whole(self) -> Fields:
        text = "".join(self.parts)
        if self.type == "tool_use":
            return {**self.start, "input": _input(text, complete=self.complete)}
        return {**self.start, self.type: text}


def _input(arguments: str, *, complete: bool) -> Fields:
    """The arguments of a call as an object. Of a call that was cut off, the members that are whole, as Anthropic's SDKs
    read them in a stream.
    """
    try:
        written = arguments if complete else to_json(from_json(arguments.strip() or "{}", allow_partial=True)).decode()
        value = strict_json(written, unique=False)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + json_bytes({"type": name, **fields}) + b"\n\n"


class MessageWriter:
    """Writes the deltas of one choice."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._reader = MessageReader(answer)
        self._blocks: list[Block] = []
        self._space = ""  # that a text may begin with

    def write(self, delta: OutputDelta) -> list[bytes]:
        """The events of what `delta` adds."""
        events = [each for piece in self._reader.read(delta) for each in self._piece(piece)]
        if delta.finish is None:
            return events
        if not self._blocks:  # clients look for a first block
            events += self._open({"type": "text", "text": "", "citations": None})
            events += self._add(self._space)
        return events + self._stop()

    def content(self) -> list[Fields]:
        """The blocks of the whole message, after the last delta."""
        return [block.whole for block in self._blocks]

    def ending(self, output: OutputProcessor) -> Fields:
        """Why the message ended, after the last delta."""
        assert output.finish is not None, "the choice has not ended"
        if self._reader.ends_in_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        stopped = output.stop_reason if output.finish is Finish.STOP else None
        return {"stop_reason": STOP_REASONS[output.finish], "stop_sequence": stopped}

    @property
    def thinking_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def _piece(self, piece: Piece) -> list[bytes]:
        if isinstance(piece, ReasoningText):
            return self._text("thinking", {"thinking": "", "signature": ""}, piece.text)
        if isinstance(piece, ContentText):
            return self._content(piece.text)
        if isinstance(piece, CallBegin):
            self._space = ""
            return self._open({"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
        if isinstance(piece, CallArguments):
            return self._add(piece.text)
        assert isinstance(piece, CallEnd)
        self._blocks[-1].complete = True
        return []

    def _content(self, text: str) -> list[bytes]:
        if self._writes("text"):
            return self._add(text)
        self._space += text
        if not self._space.strip():
            return []
        text, self._space = self._space, ""
        return self._text("text", {"text": "", "citations": None}, text)

    def _text(self, type: str, fields: Fields, text: str) -> list[bytes]:
        begun = [] if self._writes(type) else self._open({"type": type, **fields})
        return begun + self._add(text)

    def _writes(self, type: str) -> bool:
        """Whether the last block is of this type, and so goes on."""
        return bool(self._blocks) and self._blocks[-1].type == type

    def _open(self, start: Fields) -> list[bytes]:
        stopped = self._stop()
        self._blocks.append(Block(start))
        return [*stopped, event("content_block_start", index=len(self._blocks) - 1, content_block=start)]

    def _add(self, text: str) -> list[bytes]:
        if not text:
            return []
        block = self._blocks[-1]
        block.parts.append(text)
        kind, name = DELTAS[block.type]
        return [event("content_block_delta", index=len(self._blocks) - 1, delta={"type": kind, name: text})]

    def _stop(self) -> list[bytes]:
        """The end of the last block. No signature vouches for what a model of ours has thought."""
        if not self._blocks:
            return []
        at = len(self._blocks) - 1
        signed = {"type": "signature_delta", "signature": ""}
        signature = [event("content_block_delta", index=at, delta=signed)] if self._writes("thinking") else []
        return [*signature, event("content_block_stop", index=at)]
