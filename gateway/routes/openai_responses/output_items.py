"""One choice of a chat as output items, and as the events that tell of them while the text comes.

An item is reasoning, text or a call. It is open while the text that comes is its own, and is closed by a piece of
another kind, by the end of a call, or by the end of the text.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText
from gateway.request.output import Finish, OutputDelta, TokenText
from gateway.routes.openai.chat import Chat
from gateway.routes.openai.logprobs import TokenNames, chat_logprobs
from gateway.routes.openai.message_reader import MessageReader
from gateway.routes.openai_responses.input_items import Item, new_id, sealed

Event = tuple[str, dict[str, Any]]  # type, and the fields besides type and sequence number


@dataclass
class OpenItem:
    """The item that is being written: its parts so far.

    kind: "message", "reasoning" or "function_call".
    named: of a call, its `call_id` and name.
    ended: the model wrote it to its end.
    """

    kind: str
    id: str
    index: int
    named: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    ended: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def place(self) -> dict[str, Any]:
        """Where the item is, for events."""
        part = {} if self.kind == "function_call" else {"content_index": 0}
        return {"item_id": self.id, "output_index": self.index, **part}

    @property
    def part(self) -> dict[str, Any]:
        """The only part of its content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}


class OutputWriter:
    """Writes the output of one choice; `items` are those that are closed.

    logprobs: list them beside the text, with so many alternatives; None if not.
    seal: repeat reasoning as `encrypted_content`.
    """

    def __init__(self, chat: Chat, *, logprobs: int | None, seal: bool) -> None:
        self.items: list[Item] = []
        self._reader = None if chat.answer.plain else MessageReader(chat.answer)
        self._logprobs, self._seal = logprobs, seal
        by_id = bool(chat.body.return_tokens_as_token_ids)
        self._names = TokenNames(chat.outputs[0].model.tokenizer, by_id=by_id)
        self._open: OpenItem | None = None
        self._unlisted: list[TokenText] = []  # tokens of which no text has come yet

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def write(self, delta: OutputDelta) -> list[Event]:
        """What `delta` adds to the output."""
        deltas = [delta] if self._logprobs is None else delta.singles()  # each token beside its own text
        events = [event for each in deltas for piece in self._read(each) for event in self._piece(piece)]
        return events if delta.finish is None else events + self._finish(delta.finish)

    def so_far(self) -> list[Item]:
        """The closed items, and the open one as it is: for a failure."""
        return self.items if self._open is None else [*self.items, self._item(self._open, "incomplete")]

    def _read(self, delta: OutputDelta) -> list[Piece]:
        if self._logprobs is not None:
            self._unlisted += delta.tokens
        if self._reader is not None:
            return self._reader.read(delta)
        return [ContentText(delta.text)] if delta.text else []

    def _piece(self, piece: Piece) -> list[Event]:
        if isinstance(piece, ReasoningText):
            self._unlisted.clear()
            return [*self._opened("reasoning", "rs"), self._text("reasoning_text.delta", piece.text)]
        if isinstance(piece, ContentText):
            events = self._opened("message", "msg")
            return [*events, self._text("output_text.delta", piece.text, logprobs=self._listed(piece.text))]
        self._unlisted.clear()
        if isinstance(piece, CallBegin):
            return self._begun("function_call", "fc", {"call_id": piece.id or "", "name": piece.name})
        if isinstance(piece, CallArguments):
            return [self._text("function_call_arguments.delta", piece.text)]
        assert isinstance(piece, CallEnd)
        return self._closed(ended=True)

    def _opened(self, kind: str, prefix: str) -> list[Event]:
        """The events that open an item of this kind, unless one is open."""
        return [] if self._open is not None and self._open.kind == kind else self._begun(kind, prefix)

    def _begun(self, kind: str, prefix: str, named: dict[str, str] | None = None) -> list[Event]:
        closed = self._closed(ended=True)
        self._open = item = OpenItem(kind, new_id(prefix), len(self.items), named or {})
        added = {"output_index": item.index, "item": self._item(item, "in_progress")}
        events = [*closed, ("response.output_item.added", added)]
        if kind != "function_call":
            events.append(("response.content_part.added", {**item.place, "part": item.part}))
        return events

    def _text(self, type: str, text: str, **more: list[Any]) -> Event:
        assert self._open is not None
        self._open.texts.append(text)
        self._open.logprobs += more.get("logprobs", [])
        return f"response.{type}", {**self._open.place, "delta": text, **more}

    def _closed(self, *, ended: bool) -> list[Event]:
        """The events that close the open item, if one is; `ended` unless something cut it."""
        item, self._open = self._open, None
        if item is None:
            return []
        told = self._item(item, "completed" if ended else "incomplete")
        self.items.append(told)
        done: Event = ("response.output_item.done", {"output_index": item.index, "item": told})
        if item.kind == "function_call":
            fields = {**item.place, "name": item.named["name"], "arguments": item.text}
            return [("response.function_call_arguments.done", fields), done]
        logprobs = {"logprobs": list(item.logprobs)} if item.kind == "message" else {}
        text = f"response.{item.part['type']}.done", {**item.place, "text": item.text, **logprobs}
        return [text, ("response.content_part.done", {**item.place, "part": item.part}), done]

    def _finish(self, finish: Finish) -> list[Event]:
        """Close what is open. A call ends by itself, or with the text; an answer of nothing is an empty message."""
        is_call = self._open is not None and self._open.kind == "function_call"
        ended = finish is Finish.EOS if is_call else finish is not Finish.LENGTH
        events = [] if self.items or self._open else self._begun("message", "msg")
        return events + self._closed(ended=ended)

    def _item(self, item: OpenItem, status: str) -> Item:
        fields: Item = {"id": item.id, "type": item.kind, "status": status}
        if item.kind == "function_call":
            return {**fields, **item.named, "arguments": item.text}
        content = [] if status == "in_progress" else [item.part]
        if item.kind == "message":
            return {**fields, "role": "assistant", "content": content}
        reasoning = {**fields, "summary": [], "content": content}
        return {**reasoning, "encrypted_content": sealed(item.text)} if self._seal and content else reasoning

    def _listed(self, text: str) -> list[Any]:
        """The logprobs of the tokens that `text` is of: the last, up to its length, less marks before it."""
        if self._logprobs is None:
            return []
        first, covered = len(self._unlisted), 0
        while first and (covered < len(text) or not self._unlisted[first - 1].text):
            first -= 1
            covered += len(self._unlisted[first].text)
        tokens = self._unlisted[first:]
        self._unlisted.clear()
        listed: list[Any] = chat_logprobs(self._names, tokens, self._logprobs)["content"]
        return listed
