"""What a grammar in GBNF means, computed from its definition: every text up to a length, by no parser."""

import random
from collections.abc import Mapping

from jaxengine.grammar.expressions import Chars, Either, Expression, Name, Repeat, Sequence, Text

Texts = frozenset[str]
NAMES = ("root", "x", "y-z", "Start")


def language(rules: Mapping[str, Expression], longest: int) -> Texts:
    """The texts of `root` with at most `longest` characters: what the rules make of less, until it is no more."""
    known: dict[str, Texts] = dict.fromkeys(rules, frozenset())
    while True:
        found = {name: _texts(rule, known, longest) for name, rule in rules.items()}
        if found == known:
            return known["root"]
        known = found


def _texts(expression: Expression, known: Mapping[str, Texts], longest: int) -> Texts:
    match expression:
        case Text():
            return frozenset({expression.text} if len(expression.text) <= longest else ())
        case Chars():
            return frozenset(chr(code) for low, high in expression.ranges for code in range(low, high + 1))
        case Name():
            return known[expression.name]
        case Either():
            return frozenset().union(*(_texts(each, known, longest) for each in expression.parts))
        case Sequence():
            texts = frozenset({""})
            for each in expression.parts:
                texts = _joined(texts, _texts(each, known, longest), longest)
            return texts
        case Repeat():
            part = _texts(expression.part, known, longest)
            texts, made = frozenset(), frozenset({""})
            most = expression.most if expression.most is not None else expression.least + longest
            for count in range(most + 1):
                texts |= made if count >= expression.least else frozenset()
                made = _joined(made, part, longest)
            return texts


def _joined(before: Texts, after: Texts, longest: int) -> Texts:
    return frozenset(one + other for one in before for other in after if len(one + other) <= longest)


def written(rules: Mapping[str, Expression]) -> str:
    return "\n".join(f"{name} ::= {_written(rule)}" for name, rule in rules.items())


def _written(expression: Expression) -> str:
    match expression:
        case Text():
            return f'"{expression.text}"'
        case Chars():
            return "[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in expression.ranges) + "]"
        case Name():
            return expression.name
        case Repeat():
            shown = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            most = "" if expression.most is None else expression.most
            counted = f"{{{expression.least},{most}}}"
            return f"({_written(expression.part)}){shown.get((expression.least, expression.most), counted)}"
        case Sequence():
            return " ".join(map(_written, expression.parts)) or '""'
        case Either():
            return f"({' | '.join(map(_written, expression.parts))})"


def some_rules(seed: int) -> dict[str, Expression]:
    """Rules over the letters a to c, which refer to each other at random."""
    draw = random.Random(seed)
    chosen = NAMES[: draw.randint(1, len(NAMES))]
    return {name: _some(draw, chosen, depth=3) for name in chosen}


def _some(draw: random.Random, chosen: tuple[str, ...], depth: int) -> Expression:
    kind = draw.randrange(6 if depth else 3)
    if kind == 0:
        return Text("".join(draw.choices("abc", k=draw.randint(0, 3))))
    if kind == 1:
        return Chars(((ord("a"), ord(draw.choice("abc"))),))
    if kind == 2:
        return Name(draw.choice(chosen))
    if kind == 3:
        return Repeat(_some(draw, chosen, depth - 1), *draw.choice(((0, None), (1, None), (0, 1), (1, 2), (2, None))))
    parts = tuple(_some(draw, chosen, depth - 1) for _ in range(draw.randint(2, 3)))
    return Sequence(parts) if kind == 4 else Either(parts)
