"""Gemma's calls: an object with bare keys, whose strings stand between marks. It is passed on as JSON."""

import re
from dataclasses import dataclass

from gateway.parsing import json_text
from gateway.parsing.argument_types import escaped, quoted, typed
from gateway.parsing.calls import Arguments, Call, Head, Part
from gateway.parsing.reader import Malformed, Reader, Reading, marks

_HEAD = re.compile(r"\s*call:\s*([^\s{}:]+)\s*")
_NO_BRACE = re.compile(r"[^{]*")
_KEY = re.compile(r"[^:{}\[\],]*")
_SCALAR = re.compile(r"[^,{}\[\]<]*")
_UNTYPED = {"type": ["number", "boolean", "null", "string"]}


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """quote: the mark before and behind a string."""

    quote: str

    def read(self, call: Call) -> Reading[None]:
        head = Head()
        while (yield from call.reader.peek()) != "{":
            head.add(call.reader.run(_NO_BRACE))
        match = _HEAD.fullmatch(head.text)
        if match is None:
            raise Malformed
        call.begin(match[1])
        yield from self._read_object(call)
        call.end()

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        raise NotImplementedError("Gemma's notation has no grammar yet")

    def _read_object(self, call: Call) -> Reading[None]:
        """Pass the object on that is next. Brackets are matched without recursion, so depth costs nothing."""
        reader, expected = call.reader, list[str]()
        while True:
            yield from reader.space()
            character = yield from reader.peek()
            if expected and character == expected[-1]:
                expected.pop()
                call.arguments(reader.take(1))
                if not expected:
                    return
            elif expected and character == ",":
                reader.take(1)
                call.arguments(", ")
                if expected[-1] == "}":
                    yield from self._read_key(call)
            elif character in "{[":
                call.arguments(reader.take(1))
                expected.append("}" if character == "{" else "]")
                if character == "{":
                    yield from self._read_key(call)
            elif (yield from reader.accept(marks(self.quote))) is not None:
                call.arguments('"')
                yield from reader.until(marks(self.quote), lambda text: call.arguments(escaped(text)))
                call.arguments('"')
            elif character == '"':
                yield from json_text.string(reader, call.arguments)
            else:
                yield from _read_scalar(call)

    def _read_key(self, call: Call) -> Reading[None]:
        """Read a key and its colon, if the object does not end here."""
        yield from call.reader.space()
        if (yield from call.reader.peek()) == "}":
            return
        quote = yield from call.reader.accept(marks(self.quote))
        key = Head()
        if quote is not None:
            yield from call.reader.until(marks(self.quote), key.add)
        while (character := (yield from call.reader.peek())) != ":":
            key.add(part := call.reader.run(_KEY))
            if not part:
                raise Malformed(character)
        call.reader.take(1)
        call.arguments(quoted(key.text.strip().strip('"')) + ": ")


def _read_scalar(call: Call) -> Reading[None]:
    """Pass a number, true, false or null on; other bare text as a string."""
    text = yield from _scalar(call.reader)
    if not text.strip():
        raise Malformed
    call.arguments(typed(text.strip(), _UNTYPED))


def _scalar(reader: Reader) -> Reading[str]:
    text = ""
    while part := reader.run(_SCALAR):
        text += part
        yield from reader.peek()
    return text
