"""The characters that a grammar tells apart, as bits, and what its rules begin with."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from jaxengine.grammar.expressions import Chars, Either, Expression, Name, Repeat, Sequence, Text

Characters = int  # a set, one bit for each range of characters that no rule tells apart


class Alphabet:
    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._cuts = sorted({cut for rule in rules.values() for cut in _cuts(rule)})
        self._first = dict.fromkeys(rules, 0)
        self._nullable = dict.fromkeys(rules, False)
        before: object = None
        while before != (self._first, self._nullable):
            before = dict(self._first), dict(self._nullable)
            for name, rule in (*rules.items(), *reversed(list(rules.items()))):  # chains of rules go either way
                self._first[name], self._nullable[name] = self.first(rule), self.nullable(rule)

    def one(self, character: str) -> Characters:
        return self._among(ord(character), ord(character))

    def of(self, chars: Chars) -> Characters:
        found = 0
        for low, high in chars.ranges:
            found |= self._among(low, high)
        return found

    def nullable(self, expression: Expression) -> bool:
        """Whether the empty text is of it."""
        match expression:
            case Text():
                return not expression.text
            case Chars():
                return False
            case Name():
                return self._nullable[expression.name]
            case Repeat():
                return not expression.least or self.nullable(expression.part)
            case Sequence():
                return all(map(self.nullable, expression.parts))
            case Either():
                return any(map(self.nullable, expression.parts))

    def first(self, expression: Expression) -> Characters:
        """With what its texts begin."""
        match expression:
            case Text():
                return self.one(expression.text[0]) if expression.text else 0
            case Chars():
                return self.of(expression)
            case Name():
                return self._first[expression.name]
            case Repeat():
                return self.first(expression.part)
            case Sequence() | Either():
                found = 0
                for each in expression.parts:
                    found |= self.first(each)
                    if isinstance(expression, Sequence) and not self.nullable(each):
                        break
                return found

    def _among(self, low: int, high: int) -> Characters:
        return (1 << bisect_left(self._cuts, high + 1)) - (1 << bisect_left(self._cuts, low))


def _cuts(expression: Expression) -> Iterator[int]:
    """The characters at which what `expression` tells apart begins."""
    match expression:
        case Text():
            for character in expression.text:
                yield from (ord(character), ord(character) + 1)
        case Chars():
            for low, high in expression.ranges:
                yield from (low, high + 1)
        case Repeat():
            yield from _cuts(expression.part)
        case Sequence() | Either():
            for each in expression.parts:
                yield from _cuts(each)
