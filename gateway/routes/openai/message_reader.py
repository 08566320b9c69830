"""One choice of a chat taken apart into reasoning, content and calls, as its request asked; in no dialect's words.

What cuts the text, the limit of tokens or a stop string, may cut a call. Its fragment is told, streamed or not, since
deltas cannot be taken back; but the message then ends by its length or its stop string, and `ends_in_calls` says that
the last call was not cut off. A call that has no name yet is content; if the limit cut it, it is left out.
"""

from dataclasses import replace

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText
from gateway.request.output import Finish, OutputDelta
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.tool_ids import new_id


class MessageReader:
    """Reads the deltas of one choice.

    Every call that it tells has an id, and arguments: `{}` where the model wrote none and the call was not cut off.
    """

    def __init__(self, answer: AnswerFormat) -> None:
        self._answer = answer
        self._parser = answer.parser()
        self._held: list[str] = []  # reasoning that is told once it is complete
        self._last_call: CallBegin | None = None
        self._has_arguments = self._is_complete = False  # the last call
        self._finish: Finish | None = None
        self._past_reasoning = False  # anything but reasoning has been read
        self._pending = 0  # tokens since the last piece
        self.reasoning_tokens = 0

    def read(self, delta: OutputDelta) -> list[Piece]:
        """What `delta` adds to the message; neighbours of one kind are one piece."""
        parsed = [piece for single in delta.singles() for piece in self._parsed(single)]
        told = [each for piece in _joined(parsed) for each in self._told(piece)]
        if delta.finish is not None:
            told += [*self._release(), *([] if self._cuts_a_call else self._complete_arguments())]
        return told

    @property
    def ends_in_calls(self) -> bool:
        """Whether calls are the reason why the finished message ended."""
        return self._last_call is not None and self._finish is not Finish.LENGTH and not self._cuts_a_call

    @property
    def _cuts_a_call(self) -> bool:
        """Whether the last call was not complete when something else than the model ended the text."""
        return self._finish is not Finish.EOS and self._last_call is not None and not self._is_complete

    def _parsed(self, delta: OutputDelta) -> list[Piece]:
        """The pieces of a delta of one token, at most."""
        pieces = self._parser.push(delta.text)
        if delta.finish is not None:
            self._finish = delta.finish
            pieces += self._parser.finish(cut=delta.finish is Finish.LENGTH)
        self._count(len(delta.tokens), pieces)
        return pieces

    def _count(self, tokens: int, pieces: list[Piece]) -> None:
        """Tokens are those of reasoning whose text is; marks and the space around them count for nothing."""
        if not self._past_reasoning and any(isinstance(piece, ReasoningText) for piece in pieces):
            self.reasoning_tokens += tokens + (self._pending if self.reasoning_tokens else 0)
        self._pending = 0 if pieces else self._pending + tokens
        self._past_reasoning = self._past_reasoning or any(not isinstance(piece, ReasoningText) for piece in pieces)

    def _told(self, piece: Piece) -> list[Piece]:
        if isinstance(piece, ReasoningText):
            return self._think(piece)
        if isinstance(piece, ContentText):
            return [*self._release(), piece]
        if piece.index and not self._answer.tool_use.parallel:
            return []
        if isinstance(piece, CallBegin):
            return [*self._release(), *self._complete_arguments(), self._begin(piece)]
        if isinstance(piece, CallEnd):
            self._is_complete = True
            return [*self._complete_arguments(), piece]
        self._has_arguments = True
        return [piece]

    def _think(self, piece: ReasoningText) -> list[Piece]:
        if not self._answer.shown:
            return []
        if self._answer.streamed:
            return [piece]
        self._held.append(piece.text)
        return []

    def _release(self) -> list[Piece]:
        """Reasoning that was held back, if any was."""
        held = "".join(self._held)
        self._held.clear()
        return [ReasoningText(held)] if held else []

    def _begin(self, piece: CallBegin) -> CallBegin:
        assert self._answer.tools is not None
        self._last_call = replace(piece, id=piece.id or new_id(self._answer.tools))
        self._has_arguments = self._is_complete = False
        return self._last_call

    def _complete_arguments(self) -> list[Piece]:
        """`{}` for a last call that was begun and has no arguments."""
        if self._last_call is None or self._has_arguments:
            return []
        self._has_arguments = True
        return [CallArguments(self._last_call.index, "{}")]


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
