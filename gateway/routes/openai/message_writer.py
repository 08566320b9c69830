"""One choice of a chat as OpenAI's message, or as its deltas: reasoning, content and the calls of tools.

Deltas come in OpenAI's order: a call's index, id, type and name once, with empty arguments, and then its arguments in
fragments. OpenAI's SDKs join the strings of all deltas, so nothing is said twice.

Where the limit or a stop string cut a call, vLLM says `tool_calls` all the same (vllm#58228); here the finish reason is
`length` or `stop`.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText
from gateway.request.output import OutputDelta
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.message_reader import MessageReader

Delta = dict[str, Any]


@dataclass
class Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class MessageWriter:
    """Writes the deltas of one choice."""

    def __init__(self, answer: AnswerFormat) -> None:
        self._answer = answer
        self._reader = MessageReader(answer)
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []

    def write(self, delta: OutputDelta) -> list[Delta]:
        """What `delta` adds to the message."""
        return [self._piece(piece) for piece in self._reader.read(delta) if not isinstance(piece, CallEnd)]

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
        if not self._reader.ends_in_calls or self._answer.tool_use.named:
            return None
        return "function_call" if self._answer.tool_use.legacy else "tool_calls"

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def tgi_delta(self, delta: Delta) -> Delta:
        """A delta as TGI's, each of which has role and content, and each call in it an id, a type and a name."""
        calls = [self._tgi_call(call) for call in delta.get("tool_calls", ())]
        return {"role": "assistant", "content": "", **delta, **({"tool_calls": calls} if calls else {})}

    def _tgi_call(self, call: dict[str, Any]) -> dict[str, Any]:
        known = {"id": self._calls[call["index"]].id, "type": "function"}
        return {**known, **call, "function": {"name": None, **call["function"]}}

    def _piece(self, piece: Piece) -> Delta:
        if isinstance(piece, ReasoningText):
            self._reasoning.append(piece.text)
            return {"reasoning": piece.text, "reasoning_content": piece.text}  # clients look for the one or the other
        if isinstance(piece, ContentText):
            self._content.append(piece.text)
            return {"content": piece.text}
        if isinstance(piece, CallBegin):
            return self._begin(piece)
        assert isinstance(piece, CallArguments)
        self._calls[piece.index].arguments.append(piece.text)
        return self._arguments(piece)

    def _begin(self, piece: CallBegin) -> Delta:
        assert piece.id is not None
        self._calls.append(Call(piece.id, piece.name))
        if self._answer.tool_use.legacy:
            return {"function_call": _function(piece.name, "")}
        began = {"id": piece.id, "type": "function", "function": _function(piece.name, "")}
        return {"tool_calls": [{"index": piece.index, **began}]}

    def _arguments(self, piece: CallArguments) -> Delta:
        if self._answer.tool_use.legacy:
            return {"function_call": {"arguments": piece.text}}
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}
