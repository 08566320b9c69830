"""The right-hand side of a rule of a context-free grammar, as a tree."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character, whose code point is within one of `ranges`, ends included."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Name:
    """What the rule of this name matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most`: None without a limit."""

    part: "Expression"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple["Expression", ...]


Expression = Text | Chars | Name | Repeat | Sequence | Either
EMPTY = Sequence(())


def names(expression: Expression) -> Iterator[str]:
    """The rules that the expression refers to, each as often as it does."""
    match expression:
        case Name():
            yield expression.name
        case Repeat():
            yield from names(expression.part)
        case Sequence() | Either():
            for each in expression.parts:
                yield from names(each)
