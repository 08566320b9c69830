"""Grammars that force calls, in llguidance's Lark: marks that are single special tokens as ids, the rest as text."""

import re
from collections.abc import Callable, Iterable, Sequence

from gateway.grammar.choice import literal
from gateway.grammar.regex import ANYTHING, escaped
from gateway.parsing.calls import Either, Optional, Part, Schema, Text, TextUntil, UpTo
from gateway.parsing.reader import Marks

TokenId = Callable[[str], int | None]

HEADER = "%llguidance {}"
TEXT = f"TEXT: /{ANYTHING}/"
GAP = r'("\n" | "\n\n")?'  # that models write between reasoning and what follows


class Lark:
    """Writes the expressions of one tokenizer.

    marks: texts that may be special tokens.
    token_id: the id of a special token, None for text that is none.
    """

    def __init__(self, marks: Iterable[str], token_id: TokenId) -> None:
        self._tokens = {mark: id for mark in marks if (id := token_id(mark)) is not None}
        self._marks = Marks(self._tokens)
        self._named: dict[str, str] = {}  # definitions and the names of their rules

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
        return [TEXT, *(name + definition for definition, name in self._named.items())]

    def without(self, *texts: str) -> str:
        """An expression for any text that holds none of `texts`."""
        return self._terminal(TextUntil("", without=texts))

    def until(self, place: TextUntil) -> str:
        """An expression for text up to an end, and the end."""
        text = self._terminal(place)
        first = self._marks.find(place.end, 0)
        if first is None:
            return self._rule(f"[suffix={_literal(place.end)}]: {text}")
        if first.start() == 0:  # a special token is never part of the text
            return f"{text} {self.text(place.end)}"
        opening = self._rule(f": {text} {_literal(place.end[: first.start()])}", terminal=True)
        return f"{opening} {self.text(place.end[first.start() :])}"

    def _terminal(self, place: TextUntil) -> str:
        """The name of a terminal for the text alone."""
        kinds = [" & ".join(_terms(each)) for each in place.kinds]
        if place.without:
            text = f"({' | '.join(kinds)})" if len(kinds) > 1 else kinds[0]
            kinds = [f"{text} & ~/{ANYTHING}({'|'.join(map(escaped, place.without))}){ANYTHING}/"]
        return "TEXT" if kinds == [f"/{ANYTHING}/"] else self._rule(": " + " | ".join(kinds), terminal=True)

    def _rule(self, definition: str, terminal: bool = False) -> str:
        """The name of a rule, which is made once."""
        if definition not in self._named:
            self._named[definition] = f"{'PART' if terminal else 'part'}_{len(self._named)}"
        return self._named[definition]

    def _part(self, part: Part) -> str:
        match part:
            case str():
                return self.text(part)
            case Schema():
                return f"%json {part.schema}"
            case TextUntil():
                return self.until(part)
            case Optional():
                return f"({self.parts(part.parts)})?"
            case Either():
                return f"({' | '.join(map(self.parts, part.choices))})"
            case UpTo():
                each, more = self._rule(f": {self.parts(part.parts)}"), part.most - 1
                return f"({each} ({self.text(part.between)} {each}){{0,{more}}})?" if more else f"{each}?"
            case _:
                return f"({part.lark})"


def _literal(text: str) -> str:
    return literal(text) if text else ""


def _terms(text: Text) -> list[str]:
    """Regexes, all of which `text` matches. There is one at least: a complement alone matches what is no UTF-8."""
    bounded = text.least or text.most is not None
    most = "" if text.most is None else text.most
    patterns = [f"(?s:.{{{text.least},{most}}})"] if bounded else []
    patterns += text.patterns
    terms = [f"/{_slashed(each)}/" for each in patterns or [ANYTHING]]
    return terms + ([f"~/{_slashed(text.unlike)}/"] if text.unlike else [])


def _slashed(pattern: str) -> str:
    """A regex as it stands between slashes."""
    return re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern)
