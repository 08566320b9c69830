"""Calls whose arguments stand one by one in tags, their values as plain text."""

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.parsing import json_text
from gateway.parsing.argument_list import any_of
from gateway.parsing.argument_types import escaped, is_string, listed, quoted, typed, with_shared
from gateway.parsing.calls import Arguments, Call, Either, Head, Optional, Part, Schema, TextUntil
from gateway.parsing.plain_text import NotPlain, plain
from gateway.parsing.reader import Malformed, Reading, marks


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A string's text may hold the marks: a value ends where its end is followed by another tag, or by the call's end.

    name_ends: what may end the name.
    key: what opens an argument. key_end: what ends its key and, behind it, attributes.
    value: what opens a value, if anything does.
    value_ends: what may end a value, which is written with the first.
    cuts: what ends a value whose end is missing, if one of `after_cuts` follows, or whatever follows if there are none.
    end: what ends the call.
    lines: a value may stand on lines of its own.
    escapes: names and keys are written with HTML's entities.
    writes: how a call is written.
    """

    name_ends: tuple[str, ...]
    key: str
    key_end: str
    value_ends: tuple[str, ...]
    end: str
    writes: "Spelling"
    value: str = ""
    cuts: tuple[str, ...] = ()
    after_cuts: tuple[str, ...] = ()
    lines: bool = False
    escapes: bool = False

    def read(self, call: Call) -> Reading[None]:
        head = Head()
        ending = yield from call.reader.until(marks(*self.name_ends, self.key, self.end), head.add)
        name = self._attribute(head.text)
        if not name or any(map(str.isspace, name)):
            raise Malformed
        call.begin(name)
        if ending.startswith((self.key, self.end)):
            call.reader.unread(ending)
        elif ending.endswith("/>"):
            call.arguments("{}")
            call.end()
            return
        yield from self._read_arguments(call, name)

    def _read_arguments(self, call: Call, name: str) -> Reading[None]:
        reader, schemas = call.reader, call.properties(name)
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from json_text.value(reader, call.arguments)
            call.end()
            yield from reader.space()
            yield from reader.accept(marks(self.end))
            return
        separator = "{"
        while (yield from self._next_is_argument(call)):
            head = Head()
            yield from reader.until(marks(self.key_end), head.add)
            key = self._attribute(head.text)
            call.arguments(f"{separator}{quoted(key)}: ")
            yield from self._read_value(call, _declared(head.text, schemas.get(key)))
            separator = ", "
        call.arguments("{}" if separator == "{" else "}")
        call.end()

    def _next_is_argument(self, call: Call) -> Reading[bool]:
        """Take what opens the next argument, or ends the call."""
        yield from call.reader.space()
        mark = yield from call.reader.accept(marks(self.key, self.end))
        if mark is None:
            raise Malformed
        return mark == self.key

    def _read_value(self, call: Call, schema: Any) -> Reading[None]:
        if self.value:
            yield from call.reader.space()
            if (yield from call.reader.accept(marks(self.value))) is None:
                raise Malformed
        if self.lines:
            yield from call.reader.accept(marks("\n"))
        if is_string(schema):
            call.arguments('"')
            yield from self._read_text(call, lambda text: call.arguments(escaped(text)))
            call.arguments('"')
        else:
            parts: list[str] = []
            yield from self._read_text(call, parts.append)
            call.arguments(typed("".join(parts), schema))

    def _read_text(self, call: Call, emit: Any) -> Reading[None]:
        """Emit a value's text, and take its end."""
        ends, after_end, after_cut = (
            marks(*self.value_ends, *self.cuts),
            marks(self.key, self.end),
            marks(*self.after_cuts),
        )
        while True:
            mark = yield from call.reader.until(ends, emit)
            if mark in self.value_ends:
                if (yield from call.reader.follows(after_end)):
                    return
            elif not self.after_cuts or (yield from call.reader.follows(after_cut)):
                call.reader.unread(mark)
                return
            emit(mark)

    def _attribute(self, text: str) -> str:
        """A name or a key, without the attributes behind it."""
        text = text.split('"')[0].strip()
        return html.unescape(text) if self.escapes else text

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        """Arguments that cannot be written one by one are written as a JSON object, which is read as well."""
        declared = json.loads(arguments.schema)
        begin, name_end = self.writes.name + self._escape(name), self.writes.name_end
        try:
            names = arguments.names
            written = any_of(names, declared, self._write_argument, "") if names else self._write_listed(declared)
        except NotPlain:
            return [begin, *(name_end or (self.name_ends[0],)), Schema(arguments.schema), self.writes.end]
        return [begin, *name_end, *written, self.writes.end]

    def _write_listed(self, declared: dict[str, Any]) -> list[Part]:
        if not listed(declared):
            raise NotPlain
        parts: list[Part] = []
        for key, value in declared.get("properties", {}).items():
            argument = self._write_argument(key, value, declared)
            parts += argument if key in declared.get("required", ()) else [Optional(argument)]
        return parts

    def _write_argument(self, key: str, schema: Any, root: Mapping[str, Any]) -> tuple[Part, ...]:
        """An argument: its key, with what the tag says of the value's type, and a value of such a type."""
        if self._attribute(self._escape(key)) != key or self.key_end in self._escape(key):
            raise NotPlain  # it would be read as another
        choices = [
            (self.writes.key + self._escape(key) + end, *value)
            for end, kinds in self._key_ends().items()
            for value in self._write_values(schema, kinds, root)
        ]
        if not choices:
            raise NotPlain
        return choices[0] if len(choices) == 1 else (Either(tuple(choices)),)

    def _key_ends(self) -> dict[str, frozenset[str]]:
        """What is written behind a key, and for which types of values."""
        ends: dict[str, frozenset[str]] = {}
        for kind in ("string", "number", "boolean", "null", "object", "array"):
            end = self.writes.key_end.replace("{string}", str(kind == "string").lower()).replace("{type}", kind)
            ends[end] = ends.get(end, frozenset()) | {kind} | ({"integer"} if kind == "number" else set())
        return ends

    def _write_values(self, schema: Any, kinds: frozenset[str], root: Mapping[str, Any]) -> list[tuple[Part, ...]]:
        """The values of these types: strings as text, others as JSON."""
        end, marks = self.writes.value_end, (*self.value_ends, *self.cuts)
        if any(mark.strip() in json.dumps(schema, ensure_ascii=False) for mark in marks):
            raise NotPlain  # a choice that would end before its end
        text, rest = plain(schema, kinds, root)
        values: list[tuple[Part, ...]] = [(TextUntil(end, text, marks),)] if text else []
        return values if rest is None else [*values, (Schema(with_shared(rest, root)), end)]

    def _escape(self, text: str) -> str:
        return html.escape(text) if self.escapes else text


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the model writes before and after a name, a key, a value and a call.

    In `key_end`, `{string}` and `{type}` stand for whether the value is a string, and for its type.
    """

    name: str
    name_end: tuple[Part, ...]
    key: str
    key_end: str
    value_end: str
    end: str


def _declared(head: str, schema: Any) -> Any:
    """The schema of a value: attributes of its tag count more than what the tool says."""
    if 'string="true"' in head or 'type="string"' in head:
        return {"type": "string"}
    if 'string="false"' in head or 'type="' in head:
        return {"type": ["number", "boolean", "null", "object", "array"]}
    return schema
