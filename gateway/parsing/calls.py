"""What the bodies of calls have in common: what they read from and write to, and what they say for a grammar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.parsing import argument_types
from gateway.parsing.message import Message
from gateway.parsing.pieces import Tool
from gateway.parsing.reader import Malformed, Reader, Reading


@dataclass(frozen=True, slots=True)
class Schema:
    """A place in a call where a JSON value stands that a schema describes. `schema`: as JSON text."""

    schema: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A place in a call that an expression of the Lark grammar describes."""

    lark: str


@dataclass(frozen=True, slots=True)
class Text:
    """A kind of text.

    least, most: characters, without bound if None. patterns: regexes of the whole text, as llguidance reads them.
    unlike: a regex of what the whole text is not.
    """

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    unlike: str | None = None


@dataclass(frozen=True, slots=True)
class TextUntil:
    """A place in a call where text of one of these kinds stands, and behind it `end`, which the text does not hold.

    without: what the text does not hold either.
    """

    end: str
    kinds: tuple[Text, ...] = (Text(),)
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Optional:
    """Parts of a call that may be left out together."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """A place in a call where one of several things stands."""

    choices: tuple[tuple["Part", ...], ...]


@dataclass(frozen=True, slots=True)
class UpTo:
    """Parts of a call that come at most `most` times, each time as they like, with `between` between them."""

    most: int
    parts: tuple["Part", ...]
    between: str = ""


Part = str | Schema | Rule | TextUntil | Optional | Either | UpTo


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a grammar holds the arguments of a tool to.

    schema: as JSON text.
    names: of a tool that may be called with any object, the arguments that it declares. Where arguments are written one
        by one these come in any order with any values.
    """

    schema: str
    names: tuple[str, ...] = ()


class Call:
    """The place in a message where a call is read.

    tools: by name.
    known_only: there is no mark before the call, so it is one only if it names a known tool.
    """

    def __init__(self, reader: Reader, message: Message, tools: Mapping[str, Tool], *, known_only: bool) -> None:
        self.reader = reader
        self._message = message
        self._tools = tools
        self.known_only = known_only
        self.begun = False  # or one of several that follow one another

    @property
    def doubted(self) -> bool:
        """Whether it is a call only if it names a known tool."""
        return self.known_only and not self.begun

    def another(self) -> None:
        """A call may follow. What is read until it begins is text, should it be none."""
        if not self.reader.recording:
            self.reader.record()

    def check(self, name: str) -> None:
        """Raises Malformed if `name` is none. Behind a call there is no doubt that what follows is meant as one."""
        if not name or (self.doubted and name not in self._tools):
            raise Malformed

    def begin(self, name: str, id: str | None = None) -> None:
        self.check(name)
        self.begun = True
        self.reader.forget()
        self._message.begin(name, id)

    def arguments(self, text: str) -> None:
        self._message.arguments(text)

    def end(self) -> None:
        """The arguments are complete."""
        self._message.end()

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a tool's arguments; empty if it is unknown."""
        tool = self._tools.get(name)
        return argument_types.properties(tool.parameters) if tool is not None else {}


class Head:
    """The text of a call before its arguments. There is a bound to what it may hold, lest all text is kept back."""

    LIMIT = 1024  # characters

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        self.text += text
        if len(self.text) > self.LIMIT:
            raise Malformed(self.text[self.LIMIT :])


class Body(Protocol):
    """How a kind of format writes a call.

    An argument that the model writes twice is passed on twice if it streams: what is answered cannot be taken back, and
    of equal keys JSON's readers take the last (ECMA-262, 25.5.1).
    """

    def read(self, call: Call) -> Reading[None]:
        """Read what follows the opening mark. Raises Malformed, EndOfText."""
        ...

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        """One call, the opening mark included."""
        ...
