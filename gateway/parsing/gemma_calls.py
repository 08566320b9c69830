"""Gemma's calls: an object with bare keys, whose strings stand between marks. It is passed on as JSON."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.parsing import json_text
from gateway.parsing.argument_list import one_by_one
from gateway.parsing.argument_types import ANY, escaped, quoted, typed, with_shared
from gateway.parsing.calls import Arguments, Call, Either, Head, Part, Schema, TextUntil
from gateway.parsing.plain_text import NotPlain, plain
from gateway.parsing.reader import Malformed, Reader, Reading, marks

_STRINGS = frozenset({"string"})
_BARE = re.compile(r'[^\s:{}\[\],"<]+')
_HEAD = re.compile(r"\s*call:\s*([^\s{}:]+)\s*")
_NO_BRACE = re.compile(r"[^{]*")
_KEY = re.compile(r"[^:{}\[\],]*")
_SCALAR = re.compile(r"[^,{}\[\]<]*")
_UNTYPED = {"type": ["number", "boolean", "null", "string"]}


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """quote: the mark before and behind a string. begin, end: those of a call."""

    quote: str
    begin: str
    end: str

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
        """Values that are no strings are JSON, and so are arguments whose names cannot stand bare."""
        try:
            written = ["{", *one_by_one(arguments, self._write, ","), "}"]
        except NotPlain:
            written = [Schema(arguments.schema)]
        return [f"{self.begin}call:{name}", *written, self.end]

    def _write(self, key: str, schema: Any, root: Mapping[str, Any]) -> list[Part]:
        if not _BARE.fullmatch(key):
            raise NotPlain
        text, _ = plain(schema, _STRINGS, root)
        _, rest = plain(schema, ANY - _STRINGS, root)
        values: list[tuple[Part, ...]] = [(self.quote, TextUntil(self.quote, text, (self.quote,)))] if text else []
        values += [(Schema(with_shared(rest, root)),)] if rest is not None else []
        if not values:
            raise NotPlain
        return [f"{key}:", Either(tuple(values))]

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
        call.arguments(f"{(yield from self._key(call.reader))}: ")

    def _key(self, reader: Reader) -> Reading[str]:
        """The next key as JSON, as which it may be written too; its colon is taken."""
        key = Head()
        if (yield from reader.peek()) == '"':
            yield from json_text.string(reader, key.add)
            yield from reader.space()
            spelled = key.text
        else:
            if (yield from reader.accept(marks(self.quote))) is not None:
                yield from reader.until(marks(self.quote), key.add)
            while part := reader.run(_KEY):
                key.add(part)
                yield from reader.peek()
            spelled = quoted(key.text.strip())
        if (yield from reader.peek()) != ":":
            raise Malformed
        reader.take(1)
        return spelled


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
