"""What has been read of a message, as pieces: which whitespace is the message's, and which only stands between parts.

Whitespace around reasoning is dropped. So is whitespace between content and calls, unless content follows as well.
"""

from collections.abc import Callable

from gateway.parsing.pieces import CallArguments, CallBegin, CallEnd, ContentText, Piece, ReasoningText


class Message:
    """Collects the pieces of one choice."""

    def __init__(self) -> None:
        self.calls = 0  # that have begun
        self._pieces: list[Piece] = []
        self._run: list[str] = []  # texts of one kind, not yet a piece
        self._kind: Callable[[str], Piece] = ContentText
        self._space: list[str] = []  # that has been read and not been written
        self._before_call = 0  # of `_space`, how much was read before the last call
        self._reasoned = False
        self._answered = False

    def drain(self) -> list[Piece]:
        """The pieces since the last time."""
        self._close_run()
        pieces, self._pieces = self._pieces, []
        return pieces

    def reasoning(self, text: str) -> None:
        if written := self._settled(text if self._reasoned else text.lstrip()):
            self._reasoned = True
            self._write(ReasoningText, written)

    def end_reasoning(self) -> None:
        self._reasoned = True
        self._space.clear()

    def content(self, text: str) -> None:
        begins = (self._reasoned or self.calls) and not self._answered
        if written := self._settled(text.lstrip() if begins else text):
            self._answered = True
            self._write(ContentText, written)

    def begin(self, name: str, id: str | None = None) -> None:
        """A call begins."""
        if not self._answered:
            self._space.clear()
        self._before_call = len(self._space)
        self._close_run()
        self._pieces.append(CallBegin(self.calls, name, id))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that began last."""
        self._write(self._arguments_piece, text)

    def end(self) -> None:
        """The call that began last is complete."""
        self._close_run()
        self._pieces.append(CallEnd(self.calls - 1))

    def drop_space(self) -> None:
        """A mark ends: the whitespace between a call and the mark is none of the content."""
        del self._space[self._before_call :]

    def finish(self) -> None:
        """Whitespace at the end belongs to an answer that is only text."""
        if not self.calls and (self._answered or not self._reasoned):
            self._write(ContentText, "".join(self._space))
        self._space.clear()

    def _arguments_piece(self, text: str) -> CallArguments:
        return CallArguments(self.calls - 1, text)

    def _settled(self, text: str) -> str:
        """`text` behind the whitespace before it, without the whitespace at its end, which waits."""
        body = text.rstrip()
        space = text[len(body) :]
        if body:
            body = "".join([*self._space, body])
            self._space.clear()
            self._before_call = 0
        if space:
            self._space.append(space)
        return body

    def _write(self, kind: Callable[[str], Piece], text: str) -> None:
        if kind != self._kind:
            self._close_run()
            self._kind = kind
        if text:
            self._run.append(text)

    def _close_run(self) -> None:
        if self._run:
            self._pieces.append(self._kind("".join(self._run)))
            self._run.clear()
