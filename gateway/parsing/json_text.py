"""JSON inside other text: one value is passed on as it was written, and its end is where its brackets close.

Marks inside strings are text. What comes out is not validated beyond that: a model's slip is the client's to see.
"""

import re

from gateway.parsing.reader import Emit, Malformed, Reader, Reading

_PLAIN = re.compile(r"[\s\w.:,+-]*")  # between strings and brackets: numbers, names, punctuation
_SCALAR = re.compile(r"[\w.+-]*")
_CHARACTERS = re.compile(r'[^"\\]*')
_CLOSING = {"{": "}", "[": "]"}


def value(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit the JSON value that is next, after whitespace. Raises EndOfText or Malformed, after what came before."""
    yield from reader.space()
    first = yield from reader.peek()
    if first == '"':
        yield from string(reader, emit)
    elif first in _CLOSING:
        yield from _container(reader, emit)
    else:
        yield from _scalar(reader, emit)


def string(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit the JSON string whose opening quote is next."""
    emit(reader.take(1))
    while True:
        if characters := reader.run(_CHARACTERS):
            emit(characters)
        character = yield from reader.peek()
        if character == '"':
            emit(reader.take(1))
            return
        if character == "\\":
            escape = reader.take(1)
            yield from reader.peek()
            emit(escape + reader.take(1))


def _container(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit an object or a list. Its brackets are matched without recursion, so depth costs nothing."""
    expected: list[str] = []
    while True:
        character = yield from reader.peek()
        if character == '"':
            yield from string(reader, emit)
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
            emit(reader.take(1))
        elif character == (expected[-1] if expected else None):
            expected.pop()
            emit(reader.take(1))
            if not expected:
                return
        elif plain := reader.run(_PLAIN):
            emit(plain)
        else:
            raise Malformed


def _scalar(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit a number, true, false or null: it ends before the next other character."""
    text = reader.run(_SCALAR)
    if not text:
        raise Malformed
    while text:
        emit(text)
        yield from reader.peek()
        text = reader.run(_SCALAR)


def whole_characters(text: str) -> str:
    """`text` with every half of a character replaced: escapes can spell one, UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
