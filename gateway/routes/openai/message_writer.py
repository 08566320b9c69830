"""One choice of a chat as OpenAI's message, or as its deltas: reasoning, content and the calls of tools.

Deltas come in OpenAI's order: a call's index, id, type and name once, with empty arguments, and then its arguments in
fragments. OpenAI's SDKs join the strings of all deltas, so nothing is said twice.

What cuts the text, the limit of tokens or a stop string, may cut a call. Its fragment is answered, streamed or not,
since deltas cannot be taken back; but the message then ends by `length` or by `stop`, and `tool_calls` says that the
last call was not cut off. vLLM says `tool_calls` all the same (vllm#58228). A call that has no name yet is content;
if the limit cut it, it is left out, in whole answers as in streams.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText
from gateway.request.output import Finish, OutputDelta
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.tool_ids import new_id

Delta = dict[str, Any]


@dataclass
class Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    complete: bool = False


class MessageWriter:
    """Reads the deltas of one choice."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._answer = answer
        self._parser = answer.parser()
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []
        self._held: list[str] = []  # reasoning that is answered once it is complete
        self._finish: Finish | None = None
        self._past_reasoning = False  # anything but reasoning has been read
        self._pending = 0  # tokens since the last piece
        self.reasoning_tokens = 0

    def write(self, delta: OutputDelta) -> list[Delta]:
        """What `delta` adds to the message."""
        pieces = [piece for single in delta.singles() for piece in self._read(single)]
        written = [each for piece in _joined(pieces) for each in self._piece(piece)]
        if delta.finish is not None:
            written += [*self._release(), *([] if self._cuts_a_call else self._complete_call())]
        return written

    def _read(self, delta: OutputDelta) -> list[Piece]:
        """The pieces of a delta of one token, at most."""
        pieces = self._parser.push(delta.text)
        if delta.finish is not None:
            self._finish = delta.finish
            pieces += self._parser.finish(cut=delta.finish is Finish.LENGTH)
        self._count(len(delta.tokens), pieces)
        return pieces

    def message(self, echoed: str = "") -> dict[str, Any]:
        """The whole message, after the last delta; its content begins with `echoed`."""
        content = echoed + "".join(self._content) or (None if self._calls else "")
        reasoning = "".join(self._reasoning) or None
        fields: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "reasoning": reasoning}
        if self._answer.reads_reasoning:
            fields["reasoning_content"] = reasoning
        if not self._calls:
            return fields
        calls = [_function(each.name, "".join(each.arguments)) for each in self._calls]
        if self._answer.tool_use.legacy:
            return {**fields, "function_call": calls[0]}
        each = zip(self._calls, calls, strict=True)
        return {**fields, "tool_calls": [{"id": call.id, "type": "function", "function": said} for call, said in each]}

    @property
    def finish_reason(self) -> str | None:
        """Why the message ended, if calls are the reason. A named function was no choice of the model's."""
        if not self._calls or self._answer.tool_use.named or self._finish is Finish.LENGTH or self._cuts_a_call:
            return None
        return "function_call" if self._answer.tool_use.legacy else "tool_calls"

    @property
    def _cuts_a_call(self) -> bool:
        """Whether the last call was not complete when something else than the model ended the text."""
        return self._finish is not Finish.EOS and bool(self._calls) and not self._calls[-1].complete

    def tgi_delta(self, delta: Delta) -> Delta:
        """A delta as TGI's, each of which has role and content, and each call in it an id, a type and a name."""
        calls = [self._tgi_call(call) for call in delta.get("tool_calls", ())]
        return {"role": "assistant", "content": "", **delta, **({"tool_calls": calls} if calls else {})}

    def _tgi_call(self, call: dict[str, Any]) -> dict[str, Any]:
        known = {"id": self._calls[call["index"]].id, "type": "function"}
        return {**known, **call, "function": {"name": None, **call["function"]}}

    def _count(self, tokens: int, pieces: list[Piece]) -> None:
        """Tokens are those of reasoning whose text is; marks and the space around them count for nothing."""
        if not self._past_reasoning and any(isinstance(piece, ReasoningText) for piece in pieces):
            self.reasoning_tokens += tokens + (self._pending if self.reasoning_tokens else 0)
        self._pending = 0 if pieces else self._pending + tokens
        self._past_reasoning = self._past_reasoning or any(not isinstance(piece, ReasoningText) for piece in pieces)

    def _piece(self, piece: Piece) -> list[Delta]:
        if isinstance(piece, ReasoningText):
            return self._think(piece.text)
        if isinstance(piece, ContentText):
            self._content.append(piece.text)
            return [*self._release(), {"content": piece.text}]
        if piece.index and not self._answer.tool_use.parallel:
            return []
        if isinstance(piece, CallBegin):
            return [*self._release(), *self._complete_call(), self._begin(piece)]
        if isinstance(piece, CallEnd):
            self._calls[piece.index].complete = True
            return []
        self._calls[piece.index].arguments.append(piece.text)
        return [self._arguments(piece.index, piece.text)]

    def _think(self, text: str) -> list[Delta]:
        if not self._answer.shown:
            return []
        self._reasoning.append(text)
        if not self._answer.streamed:
            self._held.append(text)
            return []
        return [_reasoning(text)]

    def _release(self) -> list[Delta]:
        """Reasoning that was held back, if any was."""
        held = "".join(self._held)
        self._held.clear()
        return [_reasoning(held)] if held else []

    def _begin(self, piece: CallBegin) -> Delta:
        assert self._answer.tools is not None
        call = Call(piece.id or new_id(self._answer.tools), piece.name)
        self._calls.append(call)
        if self._answer.tool_use.legacy:
            return {"function_call": _function(call.name, "")}
        began = {"id": call.id, "type": "function", "function": _function(call.name, "")}
        return {"tool_calls": [{"index": piece.index, **began}]}

    def _complete_call(self) -> list[Delta]:
        """`{}` for a last call that was begun and has no arguments."""
        if not self._calls or self._calls[-1].arguments:
            return []
        self._calls[-1].arguments.append("{}")
        return [self._arguments(len(self._calls) - 1, "{}")]

    def _arguments(self, index: int, text: str) -> Delta:
        if self._answer.tool_use.legacy:
            return {"function_call": {"arguments": text}}
        return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}


def _reasoning(text: str) -> Delta:
    return {"reasoning": text, "reasoning_content": text}  # clients look for the one or the other


def _joined(pieces: list[Piece]) -> list[Piece]:
    """`pieces` with neighbours of one kind as one."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, CallArguments) and isinstance(last, CallArguments) and last.index == piece.index:
            joined[-1] = CallArguments(piece.index, last.text + piece.text)
        elif isinstance(piece, ContentText) and isinstance(last, ContentText):
            joined[-1] = ContentText(last.text + piece.text)
        elif isinstance(piece, ReasoningText) and isinstance(last, ReasoningText):
            joined[-1] = ReasoningText(last.text + piece.text)
        else:
            joined.append(piece)
    return joined
