"""Calls that are written as Python: a list of calls with keyword arguments, read as data and never run."""

import ast
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from gateway.parsing.argument_types import SHARED_KEYS, listed, types, with_shared
from gateway.parsing.calls import Call, Head, Optional, Part, Rule, Schema
from gateway.parsing.json_text import whole_characters
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
                if call.known_only and not call.begun:
                    raise Malformed
                reader.take(1)
                if character == "]":
                    return
            else:
                call.another()
                yield from _read_call(call)

    def write(self, name: str, schema: str) -> list[Part]:
        """Arguments that must be there come first. Without any, one may be there if those before it are. Those that the
        schema does not list are written as a dictionary that is unpacked.
        """
        declared = json.loads(schema)
        if not listed(declared):
            return [f"{name}(**", Schema(schema), ")"]
        shared = {key: declared[key] for key in SHARED_KEYS if key in declared}
        properties = declared.get("properties", {})
        required = [key for key in properties if key in declared.get("required", ())]
        arguments: list[Part] = []
        for key in required:
            arguments += _written(key, properties[key], shared, first=not arguments)
        optional = [key for key in properties if key not in required]
        if required:
            arguments += [Optional(tuple(_written(key, properties[key], shared, first=False))) for key in optional]
        else:
            arguments += _nested(
                [_written(key, properties[key], shared, first=not i) for i, key in enumerate(optional)]
            )
        return [name + "(", *arguments, ")"]


def _nested(arguments: list[list[Part]]) -> list[Part]:
    """Each may be left out together with all that follow it."""
    rest: tuple[Part, ...] = ()
    for argument in reversed(arguments):
        rest = (Optional((*argument, *rest)),)
    return list(rest)


def _written(key: str, schema: Any, shared: dict[str, Any], *, first: bool) -> list[Part]:
    value: Part = Rule('"True" | "False"') if types(schema) == {"boolean"} else Schema(with_shared(schema, shared))
    return [f"{'' if first else ', '}{key}=", value]


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
        named = [pair for keyword in node.keywords for pair in _named(keyword)]
        values = dict(named)
        if len(values) != len(named):
            raise Malformed
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None


def _named(keyword: ast.keyword) -> list[tuple[str, Any]]:
    """The names and values of `name=value`, or of `**{name: value, …}`."""
    value = _value(keyword.value)
    if keyword.arg is not None:
        return [(keyword.arg, value)]
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
