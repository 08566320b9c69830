"""Calls that are JSON objects with a name and arguments: one in a tag, several, or a list of them."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.parsing import json_text
from gateway.parsing.calls import Arguments, Call, Part, Schema
from gateway.parsing.reader import Malformed, Reader, Reading

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters")
IDS = ("id", "tool_call_id")
KEYS = {*NAMES, *ARGUMENTS, *IDS, "type"}


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """The keys may come in any order; arguments stream if the name comes before them.

    before, after: what the model writes around an object.
    name_key, arguments_key: as the model writes them; any that are known are read.
    separator: between objects that follow one another in the same tag.
    """

    before: str = ""
    after: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    separator: str | None = None

    def read(self, call: Call) -> Reading[None]:
        reader = call.reader
        yield from reader.space()
        if (yield from reader.peek()) == "[":
            yield from _read_list(call)
            return
        yield from read_object(call)
        while (yield from self._another_follows(call)):
            call.another()
            yield from read_object(call)

    def _another_follows(self, call: Call) -> Reading[bool]:
        """Whether, in the same tag or behind a separator, another object follows; takes the separator."""
        reader = call.reader
        yield from reader.space()
        character = yield from reader.peek()
        if character == self.separator:
            reader.take(1)
            return True
        return character == "{" and not call.known_only

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        spelled = json.dumps(name, ensure_ascii=False)
        begin = f'{self.before}{{"{self.name_key}": {spelled}, "{self.arguments_key}": '
        return [begin, Schema(arguments.schema), "}" + self.after]


def _read_list(call: Call) -> Reading[None]:
    reader = call.reader
    reader.take(1)
    while True:
        yield from reader.space()
        character = yield from reader.peek()
        if character == "]":
            if call.doubted:
                raise Malformed
            reader.take(1)
            return
        if character == ",":
            reader.take(1)
        else:
            call.another()
            yield from read_object(call)


def read_object(call: Call) -> Reading[None]:
    """Read one call. An object that may as well be an answer is given up as soon as it is certain to be none."""
    reader = call.reader
    yield from _expect(reader, "{")
    name, id, held, begun = "", None, None, False
    while (key := (yield from _next_key(reader))) is not None:
        if key in ARGUMENTS and name and not begun:
            call.begin(name, id)
            begun = True
            yield from _stream_arguments(call)
            call.end()
            continue
        if call.doubted and not (yield from _is_of_a_call(reader, key)):
            raise Malformed
        text = yield from _captured(reader)
        if key in ARGUMENTS and held is None:
            held = text
        elif key in NAMES and not name:
            name = _string(text) or ""
            if name or call.doubted:
                call.check(name)
        elif key in IDS:
            id = _string(text)
    if not begun:
        if held is None and call.known_only:
            raise Malformed
        call.begin(name, id)
        call.arguments(_object_text(held or "{}"))
        call.end()


def _is_of_a_call(reader: Reader, key: str) -> Reading[bool]:
    """Whether a call may have this key, and what follows as its value."""
    if key in NAMES:
        yield from reader.space()
        return (yield from reader.peek()) == '"'
    return key in KEYS


def _next_key(reader: Reader) -> Reading[str | None]:
    """The next key of an object, its colon taken; None at the object's end."""
    while True:
        yield from reader.space()
        character = yield from reader.peek()
        if character == '"':
            break
        if character not in ",}":
            raise Malformed
        reader.take(1)
        if character == "}":
            return None
    key = yield from _captured(reader)
    yield from _expect(reader, ":")
    return _string(key) or ""


def _stream_arguments(call: Call) -> Reading[None]:
    """Pass the arguments on as they are written; of a string, what it holds."""
    yield from call.reader.space()
    if (yield from call.reader.peek()) in "{[":
        yield from json_text.value(call.reader, call.arguments)
    else:
        call.arguments(_object_text((yield from _captured(call.reader))))


def _object_text(text: str) -> str:
    """Arguments as an object's text: some models write them as a string that holds the object, or null for none."""
    return "{}" if text in ("null", '""') else _string(text) or text


def _captured(reader: Reader) -> Reading[str]:
    parts: list[str] = []
    yield from json_text.value(reader, parts.append)
    return "".join(parts)


def _string(text: str) -> str | None:
    """The JSON string `text` spells, if it does."""
    try:
        value: Any = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return json_text.whole_characters(value) if isinstance(value, str) else None


def _expect(reader: Reader, character: str) -> Reading[None]:
    yield from reader.space()
    if (yield from reader.peek()) != character:
        raise Malformed
    reader.take(1)
