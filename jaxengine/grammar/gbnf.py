r"""GBNF, llama.cpp's notation, as Lark.

llguidance reads the text; what its own translation loses is kept here. In GBNF a rule matches as much or as little as
the rest needs, while a terminal of Lark takes as much as it can: `ws ::= [ \t\n]*` before `"\n"` would leave nothing.
A rule that ends where it could as well go on is no terminal here, see `lexemes`. `ws ::= ([ \t\n] ws)?`, of which
llama.cpp's grammars are full, is a repetition: recursion costs the square of its length. And names, escapes and
classes mean what they mean in GBNF, whatever they would be in Lark.
"""

import json
import re
from collections.abc import Set
from typing import Any

from llguidance import gbnf_to_lark as library

from jaxengine.grammar.expressions import EMPTY, Chars, Either, Expression, Name, Repeat, Sequence, Text, names
from jaxengine.grammar.lexemes import lexemes, regular

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
ROOT = "root"
_CHARACTER = re.compile(r"\\x([0-9A-Fa-f]{2})|\\([\s\S])|([\s\S])")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def lark(text: str) -> str:
    """`text` as Lark. Raises ValueError, and what llguidance's reader raises."""
    rules = {name: _read(rule.alternatives) for name, rule in library.GrammarParser().parse(text).items()}
    used = {name for each in rules.values() for name in names(each)} | {ROOT}
    if missing := sorted(used - rules.keys()):
        raise ValueError(f"there is no rule {missing[0][:60]!r}")
    rules = {name: _repeated(name, rule) for name, rule in rules.items()}
    terminals = {name: f"RULE_{at}" for at, name in enumerate(rules)}
    whole, split = lexemes(rules, ROOT)
    spelled = {name: terminals[name] if name in whole else f"rule_{at}" for at, name in enumerate(rules)}
    lines = [f"{terminals[name]}: {_written(rules[name], terminals)}" for name in sorted(regular(rules))]
    lines += [f"{spelled[name]}: {_written(rule, spelled, split)}" for name, rule in rules.items() if name not in whole]
    return "\n".join(["%llguidance {}", f"start: {spelled[ROOT]}", *lines]) + "\n"


def _read(node: Any) -> Expression:
    """A node of llguidance's reader."""
    match node:
        case library.LiteralNode():
            return Text("".join(_characters(node.value)))
        case library.RegexNode():
            return Chars(((0, LAST),)) if node.rx == "." else _class(node.rx[1:-1])
        case library.RuleRefNode():
            return Name(node.name)
        case library.RepetitionNode():
            return Repeat(_read(node.node), node.min_times, node.max_times)
        case library.SequenceNode():
            return _one_of(Sequence, [_read(each) for each in node.nodes])
        case library.AlternativeNode():
            return _one_of(Either, [_read(each) for each in node.alternatives])
    raise ValueError(f"{type(node).__name__} is not supported")


def _one_of(kind: type[Sequence] | type[Either], parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _characters(spelled: str) -> list[str]:
    return [
        chr(int(code, 16)) if code else _CONTROL.get(escaped, escaped) or plain
        for code, escaped, plain in _CHARACTER.findall(spelled)
    ]


def _class(spelled: str) -> Chars:
    """What stands between brackets."""
    negated = spelled.startswith("^")
    found = list(_CHARACTER.finditer(spelled, int(negated)))
    characters = _characters(spelled[int(negated) :])
    ranges, at = [], 0
    while at < len(found):
        last = at + 2 if at + 2 < len(found) and found[at + 1][0] == "-" else at
        ranges.append((ord(characters[at]), ord(characters[last])))
        at = last + 1
    if (not ranges and not negated) or any(low > high for low, high in ranges):
        raise ValueError(f"the class [{spelled[:60]}] is empty or out of order")
    return Chars(_others(ranges) if negated else tuple(ranges))


def _others(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    others, at = [], 0
    for low, high in sorted(ranges):
        if at < low:
            others.append((at, low - 1))
        at = max(at, high + 1)
    return (*others, (at, LAST)) if at <= LAST else tuple(others)


def _repeated(name: str, rule: Expression) -> Expression:
    """`rule` as a repetition, if each of its alternatives ends in the rule itself or lacks it."""
    again, last = [], []
    for each in _alternatives(rule):
        parts = each.parts if isinstance(each, Sequence) else (each,)
        recurs = parts[-1:] == (Name(name),)
        if name in names(Sequence(parts[:-1] if recurs else parts)):
            return rule
        if recurs:
            again.append(_one_of(Sequence, list(parts[:-1])))
        else:
            last.append(each)
    if not again or not last:
        return rule
    return Sequence((Repeat(_one_of(Either, again), 0, None), _one_of(Either, last)))


def _alternatives(rule: Expression) -> list[Expression]:
    if isinstance(rule, Either):
        return [each for part in rule.parts for each in _alternatives(part)]
    if isinstance(rule, Repeat) and (rule.least, rule.most) == (0, 1):
        return [*_alternatives(rule.part), EMPTY]
    return [rule]


def _written(expression: Expression, spelled: dict[str, str], split: Set[str] = frozenset()) -> str:
    """As Lark; texts of `split` character by character."""
    match expression:
        case Text() if expression.text in split:
            return " ".join(_written(Text(each), spelled) for each in expression.text)
        case Text():
            return json.dumps(expression.text, ensure_ascii=False).replace("\x7f", r"\u007f")
        case Chars():
            return f"/[{''.join(map(_range, _whole(expression.ranges)))}]/"
        case Name():
            return spelled[expression.name]
        case Repeat():
            most = "" if expression.most is None else expression.most
            return f"({_written(expression.part, spelled, split)}){{{expression.least},{most}}}"
        case Sequence():
            return " ".join(f"({_written(each, spelled, split)})" for each in expression.parts) or '""'
        case Either():
            return " | ".join(f"({_written(each, spelled, split)})" for each in expression.parts)


def _whole(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """`ranges` without halves of characters."""
    first, last = SURROGATES
    parts = [part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))]
    return [(low, high) for low, high in parts if low <= high]


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return rf"\u{{{low:X}}}-\u{{{high:X}}}"
