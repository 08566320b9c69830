"""How a family of models writes calls of tools: marks around a body, to be read and to be forced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.parsing.calls import Arguments, Body, Call, Part, TextUntil
from gateway.parsing.lark import GAP, HEADER, Lark, TokenId
from gateway.parsing.reader import Malformed, Reading, marks


class ToolFormat(Protocol):
    """What the rest of the gateway knows of a format."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that, where they are special tokens, must stay in the text that a parser is given."""
        ...

    def grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str:
        """Lark that forces calls and nothing else: at least one, exactly one if not `parallel`.

        tools: what their arguments are held to, by their names.
        token_id: the id of a special token, None for text that is none.
        """
        ...

    def auto_grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str | None:
        """Lark of free text in which every call fits its schema; None if no mark tells where a call begins."""
        ...


@dataclass(frozen=True, slots=True)
class MarkedFormat:
    """Calls that begin with a mark, or stand bare at the start of the content.

    opens: marks, one of which begins every call.
    sections: marks that may stand before the first of several calls.
    closes: marks that may follow calls.
    inner: further marks inside calls.
    noise: marks that are dropped wherever they stand in the content.
    bare: a call of a known tool may stand without a mark where the content begins.
    head, between, tail: what the model writes before, between and after calls. All that a call begins with is the
        body's.
    """

    name: str
    body: Body
    opens: tuple[str, ...]
    sections: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    bare: bool = False
    head: str = ""
    between: str = ""
    tail: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.opens, *self.sections, *self.closes, *self.inner, *self.noise)

    def read(self, call: Call, mark: str | None) -> Reading[None]:
        """Read a call, or a list of them, whose `mark` has been read. Raises Malformed, EndOfText."""
        if mark in self.sections:
            yield from call.reader.space()
            mark = yield from call.reader.accept(marks(*self.opens, *self.closes))
            if mark is None:
                raise Malformed
            if mark in self.closes:
                return
        yield from self.body.read(call)

    def grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str:
        lark = Lark(self.marks, token_id)
        calls = [self.body.write(name, arguments) for name, arguments in tools.items()]
        start = f"start: {GAP} {lark.text(self.head)} {self._several(lark, parallel)}"
        return "\n".join([HEADER, start, *_alternatives(lark, calls)])

    def auto_grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str | None:
        lark = Lark(self.marks, token_id)
        calls = [self.body.write(name, arguments) for name, arguments in tools.items()]
        mark = self._written_mark(calls[0])
        if mark is None:
            return None
        if self.head:
            group = f"{lark.text(self.head.removeprefix(mark))} {self._several(lark, parallel)}"
        else:
            group = "call"
            calls = [[str(call[0]).removeprefix(mark), *call[1:]] for call in calls]
        others = tuple(each for each in (*self.opens, *self.sections) if each != mark and not lark.is_token(each))
        until, rest = lark.until(TextUntil(mark, without=others)), lark.without(*others)
        start = f"start: ({until} {group}){'*' if parallel else '?'} {rest}"
        return "\n".join([HEADER, start, *_alternatives(lark, calls)])

    def _written_mark(self, call: list[Part]) -> str | None:
        """The mark that the model writes before calls; None if it writes none."""
        first = str(self.head or call[0])
        marks = () if self.bare else (*self.sections, *self.opens)
        return next((mark for mark in marks if first.startswith(mark)), None)

    def _several(self, lark: Lark, parallel: bool) -> str:
        more = f"({lark.text(self.between)} call)*" if parallel else ""
        return f"call {more} {lark.text(self.tail)}"


def _alternatives(lark: Lark, calls: list[list[Part]]) -> list[str]:
    """The rules of `call`, which is any of `calls`."""
    names = [f"call_{number}" for number in range(len(calls))]
    rules = [f"{name}: {lark.parts(parts)}" for name, parts in zip(names, calls, strict=True)]
    return [f"call: {' | '.join(names)}", *rules, *lark.rules()]
