"""Text that arrives in parts, read by coroutines.

A reading is written as if the whole text were there, and yields where it needs more. It decides nothing that text to
come may change, so what it reads does not depend on where the text was cut. What it has decided it consumes: a part of
the text is looked at once, and only what may become a mark stays behind.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import TypeVar

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
Emit = Callable[[str], None]

_SPACE = re.compile(r"\s*")
MAX_GAP = 256  # characters of whitespace that a reading looks across before it decides


class EndOfText(Exception):
    """The text ended, by the model or its limit, where a reading needs more of it."""


class Malformed(Exception):
    """The text is not what the reading expects. `rest` is what was taken last and has to be put back."""

    def __init__(self, rest: str = "") -> None:
        super().__init__(rest)
        self.rest = rest


class Marks:
    """Literal texts that are looked for together. The first wins; of two that begin together, the longer."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._prefixes = {text[:length] for text in self.texts for length in range(1, len(text))}
        self._longest = max(map(len, self._prefixes), default=0)
        self.span = max(map(len, self.texts), default=0)
        self._first = re.compile("[" + re.escape("".join({text[0] for text in self.texts})) + "]" if texts else r"(?!)")

    def find(self, text: str, start: int) -> re.Match[str] | None:
        return self._found.search(text, start)

    def held(self, text: str, start: int) -> int:
        """Where the longest end of `text` begins that may become a mark; its length if there is none."""
        at = max(start, len(text) - self._longest)
        while (first := self._first.search(text, at)) is not None:
            if text[first.start() :] in self._prefixes:
                return first.start()
            at = first.start() + 1
        return len(text)

    def open(self, text: str) -> bool:
        """Whether `text` may become a mark, or a longer one."""
        return not text or text in self._prefixes


@cache
def marks(*texts: str) -> Marks:
    """The same for the same texts: those of the formats, which are few."""
    return Marks(texts)


class Reader:
    """The text of one choice, from the first character that is not decided yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    def unread(self, text: str) -> None:
        """Put back what was taken last."""
        self._text, self._at = text + self._text[self._at :], 0

    def record(self) -> None:
        """Remember what is read from here on, until `recorded` or `forget`."""
        self._record = []

    def recorded(self) -> str:
        text, self._record = "".join(self._record or ()), None
        return text

    def forget(self) -> None:
        self._record = None

    @property
    def recording(self) -> bool:
        return self._record is not None

    def take(self, length: int) -> str:
        text = self._text[self._at : self._at + length]
        self._at += length
        if self._record is not None:
            self._record.append(text)
        return text

    def more(self) -> Reading[None]:
        """Wait for text. Raises EndOfText."""
        if self.ended:
            raise EndOfText
        yield

    def peek(self) -> Reading[str]:
        """The next character. Raises EndOfText."""
        while self._at == len(self._text):
            yield from self.more()
        return self._text[self._at]

    def run(self, pattern: re.Pattern[str]) -> str:
        """Take what matches of the text that is here. The pattern is a run of characters that may match nothing."""
        match = pattern.match(self._text, self._at)
        assert match is not None
        return self.take(match.end() - match.start())

    def space(self) -> Reading[str]:
        """Take whitespace, up to the next other character. Raises EndOfText."""
        taken = self.run(_SPACE)
        while self._at == len(self._text):
            yield from self.more()
            taken += self.run(_SPACE)
        return taken

    def until(self, marks: Marks, emit: Emit) -> Reading[str]:
        """Emit the text before the next mark, and take the mark. Raises EndOfText, after all was emitted."""
        while True:
            held = len(self._text) if self.ended else marks.held(self._text, self._at)
            found = marks.find(self._text, self._at)
            if found is not None and found.start() < held:
                if found.start() > self._at:
                    emit(self.take(found.start() - self._at))
                return self.take(len(found[0]))
            if held > self._at:
                emit(self.take(held - self._at))
            yield from self.more()

    def accept(self, marks: Marks) -> Reading[str | None]:
        """Take the mark that is next, if one is. Raises EndOfText where one may have begun."""
        while (open := marks.open(self._text[self._at : self._at + marks.span])) and not self.ended:
            yield
        found = marks.find(self._text, self._at)
        if found is not None and found.start() == self._at:
            return self.take(len(found[0]))
        if open:
            raise EndOfText
        return None

    def follows(self, marks: Marks) -> Reading[bool]:
        """Whether whitespace and then one of `marks` comes next, or only whitespace to the end. Takes nothing."""
        while True:
            match = _SPACE.match(self._text, self._at, self._at + MAX_GAP)
            assert match is not None
            rest = self._text[match.end() : match.end() + marks.span]
            if rest and (any(map(rest.startswith, marks.texts)) or not marks.open(rest)):
                return any(map(rest.startswith, marks.texts))
            if self.ended:
                return not rest
            yield
