"""Calls that are written as Python: a list of calls with keyword arguments, read as data and never run."""

import ast
import json
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.parsing.argument_list import one_by_one
from gateway.parsing.argument_types import with_shared
from gateway.parsing.calls import Arguments, Call, Either, Head, Part, Rule, Schema
from gateway.parsing.json_text import whole_characters
from gateway.parsing.plain_text import NotPlain
from gateway.parsing.reader import Emit, Malformed, Reader, Reading

MAX_ARGUMENTS = 262_144  # characters of one call: ast takes some 100 bytes for each
_NAME = re.compile(r"[\w.-]*")
_NAME_BEGINS = re.compile(r"[A-Za-z_]")
_PLAIN = re.compile(r"""[^"'()\[\]{}]*""")
_TEXT = re.compile(r"""[^"'\\]*""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES = {"true": True, "false": False, "null": None}
_UNKNOWN_ESCAPE = re.compile(r"\\([^\n\\'\"abfnrtvNuUx0-7])|(\\.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """A call's arguments are written as JSON once the call is complete. Forced calls have JSON values."""

    def read(self, call: Call) -> Reading[None]:
        reader = call.reader
        yield from reader.space()
        if (yield from reader.peek()) != "[":
            yield from _read_lines(call)
            return
        reader.take(1)
        while True:
            yield from reader.space()
            character = yield from reader.peek()
            if character in ",]":
                if call.doubted:
                    raise Malformed
                reader.take(1)
                if character == "]":
                    return
            else:
                call.another()
                yield from _read_call(call)

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        """Arguments that Python has no notation for are written as a dictionary that is unpacked."""
        try:
            return [name + "(", *one_by_one(arguments, _write, ", "), ")"]
        except NotPlain:
            return [f"{name}(**", Schema(arguments.schema), ")"]


def _write(key: str, schema: Any, root: Mapping[str, Any]) -> list[Part]:
    if not (key.isascii() and key.isidentifier()) or keyword.iskeyword(key):
        raise NotPlain
    value = Schema(with_shared(schema, root))
    if schema == {"type": "boolean"}:
        return [f"{key}=", Rule('"True" | "False"')]
    return [f"{key}=", value if schema else Either((("True",), ("False",), ("None",), (value,)))]


def _read_lines(call: Call) -> Reading[None]:
    """Read calls that follow one another without a list."""
    if call.known_only:
        raise Malformed
    yield from _read_call(call)
    yield from call.reader.space()
    while _NAME_BEGINS.match((yield from call.reader.peek())):
        call.another()
        yield from _read_call(call)
        yield from call.reader.space()


def _read_call(call: Call) -> Reading[None]:
    name = Head()
    while (yield from call.reader.peek()) != "(":
        part = call.reader.run(_NAME)
        if not part:
            raise Malformed
        name.add(part)
    call.check(name.text)
    parts: list[str] = []
    yield from _bracketed(call.reader, parts.append)
    arguments = _arguments("".join(parts))
    call.begin(name.text)
    call.arguments(arguments)
    call.end()


def _bracketed(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit the text from the next bracket to the one that closes it."""
    expected: list[str] = []
    length = 0
    while True:
        character = yield from reader.peek()
        if character in "\"'":
            yield from _string(reader, emit)
            continue
        if character in _CLOSING:
            expected.append(_CLOSING[character])
            emit(reader.take(1))
        elif character == expected[-1]:
            expected.pop()
            emit(reader.take(1))
            if not expected:
                return
        elif plain := reader.run(_PLAIN):
            length += len(plain)
            emit(plain)
        else:
            raise Malformed
        if length > MAX_ARGUMENTS:
            raise Malformed


def _string(reader: Reader, emit: Emit) -> Reading[None]:
    """Emit a string literal, of one quote or of three."""
    quote = reader.take(1)
    emit(quote)
    closing = quote
    if (yield from reader.peek()) == quote:
        emit(reader.take(1))
        if (yield from reader.peek()) != quote:
            return
        emit(reader.take(1))
        closing = 3 * quote
    run = ""
    while run != closing:
        if text := reader.run(_TEXT):
            emit(text)
            run = ""
        character = yield from reader.peek()
        taken = reader.take(1)
        if character == "\\":
            yield from reader.peek()
            taken += reader.take(1)
        emit(taken)
        run = run + taken if character == quote else ""


def _arguments(text: str) -> str:
    """The arguments, `(a=1, …)`, as the JSON text of an object. Raises Malformed."""
    text = _UNKNOWN_ESCAPE.sub(_as_python, text)
    try:
        if len(text) > MAX_ARGUMENTS:
            raise Malformed
        node = ast.parse("_" + text, mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            raise Malformed
        named = [pair for each in node.keywords for pair in _named(each)]
        return json.dumps(dict(named), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None


def _named(argument: ast.keyword) -> list[tuple[str, Any]]:
    """The names and values of `name=value`, or of `**{name: value, …}`."""
    value = _value(argument.value)
    if argument.arg is not None:
        return [(argument.arg, value)]
    if not isinstance(value, dict):
        raise Malformed
    return list(value.items())


def _as_python(match: re.Match[str]) -> str:
    """JSON's `\\/` is a slash; before other characters Python keeps the backslash, and would warn."""
    if match[1] is None:
        return match[0]
    return "/" if match[1] == "/" else "\\\\" + match[1]


def _value(node: ast.expr) -> Any:
    """The JSON value that a literal stands for."""
    match node:
        case ast.Constant(value=str() as text):
            return whole_characters(text)
        case ast.Constant(value=bool() | int() | None as value):
            return value
        case ast.Constant(value=float() as number):
            return min(number, sys.float_info.max)  # infinite where Python's range ends: JSON has no such number
        case ast.Name(id=("true" | "false" | "null") as name):
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as operand):
            return -_value(operand)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise Malformed


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return whole_characters(node.value)
    raise Malformed
