"""Grammars that force calls, in llguidance's Lark: marks that are single special tokens as ids, the rest as text."""

import json
from collections.abc import Callable, Iterable, Sequence

from gateway.parsing.calls import Optional, Part, Schema, TextUntil
from gateway.parsing.reader import Marks

TokenId = Callable[[str], int | None]

HEADER = "%llguidance {}"
TEXT = r"TEXT: /(?s:.*)/"
GAP = r'("\n" | "\n\n")?'  # that models write between reasoning and what follows


class Lark:
    """Writes the expressions of one tokenizer.

    marks: texts that may be special tokens.
    token_id: the id of a special token, None for text that is none.
    """

    def __init__(self, marks: Iterable[str], token_id: TokenId) -> None:
        self._tokens = {mark: id for mark in marks if (id := token_id(mark)) is not None}
        self._marks = Marks(self._tokens)
        self._until: dict[str, str] = {}  # rules of text up to an end, by that end

    def is_token(self, text: str) -> bool:
        return text in self._tokens

    def parts(self, parts: Sequence[Part]) -> str:
        return " ".join(filter(None, map(self._part, parts)))

    def text(self, text: str) -> str:
        """An expression for exactly this text."""
        expressions, at = [], 0
        while (found := self._marks.find(text, at)) is not None:
            expressions += [_literal(text[at : found.start()]), f"<[{self._tokens[found[0]]}]>"]
            at = found.end()
        return " ".join(filter(None, [*expressions, _literal(text[at:])]))

    def rules(self) -> list[str]:
        """The rules that the expressions so far refer to."""
        return [TEXT, *self._until.values()]

    def until(self, end: str) -> str:
        """An expression for any text up to `end`, and `end`."""
        first = next((mark for mark in self._tokens if end.startswith(mark)), None)
        if first is not None:  # a special token is never part of the text
            return f"TEXT {self.text(end)}"
        name = f"until_{list(self._until).index(end) if end in self._until else len(self._until)}"
        self._until[end] = f"{name}[suffix={_literal(end)}]: TEXT"
        return name

    def _part(self, part: Part) -> str:
        match part:
            case str():
                return self.text(part)
            case Schema():
                return f"%json {part.schema}"
            case TextUntil():
                return self.until(part.end)
            case Optional():
                return f"({self.parts(part.parts)})?"
            case _:
                return f"({part.lark})"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
