"""The parser of text in which marks stand around reasoning and calls."""

from collections.abc import Sequence

from gateway.parsing.calls import Call, Head
from gateway.parsing.message import Message
from gateway.parsing.pieces import Piece, Tool
from gateway.parsing.reader import Emit, EndOfText, Malformed, Reader, Reading, marks
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.tool_format import MarkedFormat


class TextParser:
    """Reads reasoning first, then content and calls.

    What follows a mark and is no call stays text, mark and all, of the region where it stands. The text's end makes no
    difference to that, unless the limit of tokens cut the text: then a call without a whole name is dropped, and so
    without a mark, where the text is `forced` to be calls.
    """

    def __init__(
        self,
        tools_in: MarkedFormat | None,
        reasoning_in: ReasoningFormat | None,
        tools: Sequence[Tool],
        prompt: str,
        *,
        forced: bool = False,
    ) -> None:
        self._format, self._reasoning_format, self._prompt = tools_in, reasoning_in, prompt
        self._tools = {tool.name: tool for tool in tools}
        self._reader, self._message = Reader(), Message()
        noise = (*(tools_in.noise if tools_in else ()), *(reasoning_in.noise if reasoning_in else ()))
        self._opens = (*tools_in.opens, *tools_in.sections) if tools_in else ()
        self._before_calls = marks(*self._opens, *noise)
        self._after_calls = marks(*self._opens, *noise, *(tools_in.closes if tools_in else ()))
        self._reading = self._read()
        self._forced, self._cut = forced, False

    def push(self, text: str) -> list[Piece]:
        self._reader.feed(text)
        self._resume()
        return self._message.drain()

    def finish(self, *, cut: bool = False) -> list[Piece]:
        self._reader.ended, self._cut = True, cut
        self._resume()
        self._message.finish()
        return self._message.drain()

    def _resume(self) -> None:
        try:
            next(self._reading)
        except (EndOfText, StopIteration):
            assert self._reader.ended

    def _read(self) -> Reading[None]:
        if self._reasoning_format is not None:
            yield from self._read_reasoning(self._reasoning_format)
        if self._format is not None and self._format.bare:
            yield from self._read_bare_calls(self._format)
        while True:
            watched = self._after_calls if self._message.calls else self._before_calls
            mark = yield from self._reader.until(watched, self._message.content)
            if mark in self._opens:
                yield from self._read_call(mark, self._message.content)
            else:
                self._message.drop_space()

    def _read_reasoning(self, written: ReasoningFormat) -> Reading[None]:
        """Read reasoning, if there is any."""
        reader, message = self._reader, self._message
        begins = marks(*written.begins)
        begun = yield from reader.follows(begins)
        if begun:
            yield from reader.space()
            yield from reader.accept(begins)
        elif not written.open_after(self._prompt):
            return
        ends = marks(*written.ends, *(self._opens if written.ended_by_call else ()))
        ended = False
        while not ended:
            mark = yield from reader.until(ends, message.reasoning)
            ended = mark in written.ends or (yield from self._read_call(mark, message.reasoning))
        message.end_reasoning()

    def _read_bare_calls(self, written: MarkedFormat) -> Reading[None]:
        """Read calls without marks, which only stand where the content begins."""
        while (yield from self._attempt(written, None, self._message.content)):
            pass

    def _read_call(self, mark: str, region: Emit) -> Reading[bool]:
        """Read what follows `mark`. False if it is no call: then it is text of its `region`."""
        assert self._format is not None
        return (yield from self._attempt(self._format, mark, region))

    def _attempt(self, written: MarkedFormat, mark: str | None, region: Emit) -> Reading[bool]:
        reader = self._reader
        call = Call(reader, self._message, self._tools, known_only=mark is None)
        reader.record()
        try:
            yield from written.read(call, mark)
        except (Malformed, EndOfText) as wrong:
            nameless, ended = reader.recording, isinstance(wrong, EndOfText)
            if ended and (not nameless or (self._cut and (mark is not None or call.begun or self._forced))):
                raise
            if not call.begun:
                region(mark or "")
            if nameless:
                self._read_as_text(region if not call.begun else self._message.content, ended=ended)
            elif isinstance(wrong, Malformed):
                reader.unread(wrong.rest)
                yield from self._skip_call(written)
        reader.forget()
        return call.begun

    def _read_as_text(self, region: Emit, *, ended: bool = False) -> None:
        """What was recorded is text. It may hold calls all the same; of a long one the beginning is not looked at
        again, lest every mark in it makes all of it be read once more: if all the rest has `ended` unread as a call,
        half of it.
        """
        text = self._reader.recorded()
        seen = max(Head.LIMIT, len(text) // 2 if ended else 0) if len(text) > Head.LIMIT else 0
        region(text[:seen])
        self._reader.unread(text[seen:])

    def _skip_call(self, written: MarkedFormat) -> Reading[None]:
        """Go on behind a call that went wrong after it had begun."""
        if written.closes:
            yield from self._reader.until(marks(*written.closes), lambda text: None)
