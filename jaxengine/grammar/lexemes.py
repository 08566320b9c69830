"""Which parts of a grammar a lexer may read as one, the longest that there is, without losing a text.

That is fast: the rest of the grammar sees one lexeme where there were many characters. But where a lexeme ends and
another, or the same, could go on with a character that may also follow it, the lexer would always go on. Such parts are
read character by character.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

from jaxengine.grammar.alphabet import Alphabet, Characters
from jaxengine.grammar.expressions import Chars, Either, Expression, Name, Repeat, Sequence, Text, names

MAX_SIZE = 1_000  # characters of a grammar that is one lexeme, its repetitions written out
MAX_POSITIONS = 2_000  # of the automaton that reads all lexemes; a larger one is not looked at
MAX_STEPS = 200_000  # from a position, by a character: 50 ms. What lies beyond is not looked at
MAX_COPIES = 4  # of a part that is repeated: beyond, it makes no difference to what may come next

Rules = Mapping[str, Expression]
Lexeme = Name | Text | Chars


class TooLarge(Exception):
    """An automaton would be."""


def regular(rules: Rules) -> list[str]:
    """The names of the rules that are regular expressions, as none of them refers to itself, however indirectly. Each
    comes behind those that it refers to.
    """
    waits_for = {name: set(names(rule)) for name, rule in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, others in waits_for.items():
        for other in others:
            users[other].append(name)
    found = [name for name, others in waits_for.items() if not others]
    for name in found:  # which grows
        for user in users[name]:
            waits_for[user].discard(name)
            if not waits_for[user]:
                found.append(user)
    return found


def lexemes(rules: Rules, root: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the rules that are one lexeme where a rule that is none refers to them; the texts that are none."""
    ordered, split = regular(rules), frozenset[str]()
    whole = frozenset(ordered)
    if root in whole and _sizes(rules, ordered)[root] <= MAX_SIZE:
        return whole, split
    rules = {name: rules[name] for name in _leaves_first(rules)}  # what goes from rule to rule arrives soon
    alphabet = Alphabet(rules)
    whole -= {root}
    with suppress(TooLarge):
        while wrong := _greedy(_follow(alphabet, rules, whole, split), alphabet, rules):
            whole -= {each.name for each in wrong if isinstance(each, Name)}
            split |= {each.text for each in wrong if isinstance(each, Text)}
    return whole, split


def _leaves_first(rules: Rules) -> list[str]:
    """The names of `rules`, each behind those that it refers to, as far as they do not refer back to it."""
    found: dict[str, None] = {}
    begun: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting[-1]
        others = [] if name in begun else [each for each in names(rules[name]) if each not in begun]
        begun.add(name)
        if others:
            waiting += others
        else:
            found[waiting.pop()] = None
    return list(found)


def _sizes(rules: Rules, ordered: Iterable[str]) -> dict[str, int]:
    """How many characters each rule of `ordered` writes down, its repetitions and references written out."""
    sizes: dict[str, int] = {}
    for name in ordered:
        sizes[name] = _size(rules[name], sizes)
    return sizes


def _size(expression: Expression, sizes: Mapping[str, int]) -> int:
    match expression:
        case Text():
            return len(expression.text)
        case Chars():
            return 1
        case Name():
            return sizes[expression.name]
        case Repeat():
            return _size(expression.part, sizes) * max(1, expression.least, expression.most or 0)
        case Sequence() | Either():
            return sum(_size(each, sizes) for each in expression.parts)


def _follow(alphabet: Alphabet, rules: Rules, whole: Set[str], split: Set[str]) -> dict[Lexeme, Characters]:
    """The lexemes of the rules that are none themselves, and what may stand behind each."""
    after_rules = dict.fromkeys(rules, 0)
    found: dict[Lexeme, Characters] = {}

    def spread(expression: Expression, after: Characters) -> None:
        match expression:
            case Name() if expression.name not in whole:
                after_rules[expression.name] |= after
            case Text() if expression.text in split:
                spread(Sequence(tuple(map(Text, expression.text))), after)
            case Name() | Text() | Chars():
                found[expression] = found.get(expression, 0) | after
            case Repeat():
                spread(expression.part, after | alphabet.first(expression.part))
            case Either():
                for each in expression.parts:
                    spread(each, after)
            case Sequence():
                for each in reversed(expression.parts):
                    spread(each, after)
                    after = alphabet.first(each) | (after if alphabet.nullable(each) else 0)

    before: object = None
    while before != (after_rules, found):
        before = dict(after_rules), dict(found)
        others = [name for name in rules if name not in whole]
        for name in (*others, *reversed(others)):
            spread(rules[name], after_rules[name])
    return found


def _greedy(follow: Mapping[Lexeme, Characters], alphabet: Alphabet, rules: Rules) -> set[Lexeme]:
    """Of a lexeme that ends where one could go on with what may follow: both, if they have several characters."""
    automaton = _Automaton(alphabet, rules)
    parts = {lexeme: automaton.part(lexeme) for lexeme in follow}
    owner = {at: lexeme for lexeme, part in parts.items() for at in part.all}
    wrong: set[Lexeme] = set()
    for state in automaton.states(frozenset().union(*(part.begins for part in parts.values()))):
        for lexeme in {owner[at] for at in state}:
            if state & parts[lexeme].ends:
                on = {owner[at] for at in state if automaton.behind([at]) & follow[lexeme]}
                wrong |= {lexeme, *on} if on else set()
    return {each for each in wrong if isinstance(each, Name) or (isinstance(each, Text) and len(each.text) > 1)}


@dataclass(frozen=True)
class _Part:
    """A part of an automaton: the positions with which its texts begin and end, and all of them."""

    empty: bool = True  # whether the empty text is one
    begins: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    all: frozenset[int] = frozenset()


@dataclass
class _Automaton:
    """Positions, each of which matches one character (Glushkov's construction).

    next: of each position, those that may come next.
    """

    alphabet: Alphabet
    rules: Rules
    characters: list[Characters] = field(default_factory=list)
    next: list[set[int]] = field(default_factory=list)
    _steps_made: int = 0

    def part(self, expression: Expression) -> _Part:
        match expression:
            case Text():
                return self._sequence(self._position(self.alphabet.one(each)) for each in expression.text)
            case Chars():
                return self._position(self.alphabet.of(expression))
            case Name():
                return self.part(self.rules[expression.name])
            case Repeat():
                return self._sequence(self._copies(expression))
            case Sequence():
                return self._sequence(map(self.part, expression.parts))
            case Either():
                parts = list(map(self.part, expression.parts))
                return _Part(
                    any(each.empty for each in parts),
                    frozenset().union(*(each.begins for each in parts)),
                    frozenset().union(*(each.ends for each in parts)),
                    frozenset().union(*(each.all for each in parts)),
                )

    def _position(self, characters: Characters) -> _Part:
        if len(self.characters) == MAX_POSITIONS:
            raise TooLarge
        self.characters.append(characters)
        self.next.append(set())
        at = frozenset({len(self.characters) - 1})
        return _Part(False, at, at, at)

    def _sequence(self, parts: Iterable[_Part]) -> _Part:
        whole = _Part()
        for each in parts:
            for end in whole.ends:
                self.next[end] |= each.begins
            begins = whole.begins | each.begins if whole.empty else whole.begins
            ends = whole.ends | each.ends if each.empty else each.ends
            whole = _Part(whole.empty and each.empty, begins, ends, whole.all | each.all)
        return whole

    def _copies(self, repeat: Repeat) -> Iterator[_Part]:
        least, most = min(repeat.least, MAX_COPIES), repeat.most
        for number in range(least if most is None else min(most, MAX_COPIES)):
            copy = self.part(repeat.part)
            yield copy if number < least else _Part(True, copy.begins, copy.ends, copy.all)
        if most is None or most > MAX_COPIES:
            copy = self.part(repeat.part)
            for end in copy.ends:
                self.next[end] |= copy.begins
            yield _Part(True, copy.begins, copy.ends, copy.all)

    def behind(self, positions: Iterable[int]) -> Characters:
        """The characters that may come next."""
        return self._union(following for at in positions for following in self.next[at])

    def states(self, begins: frozenset[int]) -> Iterator[frozenset[int]]:
        """The sets of positions that texts lead to."""
        waiting = self._steps(begins)
        seen = set(waiting)
        while waiting and self._steps_made < MAX_STEPS:
            state = waiting.pop()
            yield state
            steps = self._steps(frozenset().union(*(self.next[at] for at in state))) - seen
            seen |= steps
            waiting |= steps

    def _steps(self, positions: frozenset[int]) -> set[frozenset[int]]:
        """The sets of positions that one character may lead to, of all that may come next."""
        left, found = self._union(positions), set[frozenset[int]]()
        self._steps_made += left.bit_count() * len(positions)
        while left:
            character = left & -left
            found.add(frozenset(at for at in positions if self.characters[at] & character))
            left &= ~character
        return found

    def _union(self, positions: Iterable[int]) -> Characters:
        found = 0
        for at in positions:
            found |= self.characters[at]
        return found
