"""Values that a call holds as plain text: what a schema says of them, as regexes.

Strings stand in a call as they are, other values as JSON. Read back, a text that spells a value of another type is of
that type, if the schema allows it. So where a schema allows strings and others, its strings are not to be like those.
What of the others a regex can tell is part of the same terminal: llguidance's lexer goes on with the longest, and would
never end at a `null` that may become a longer string.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.grammar import regex
from gateway.grammar.format_patterns import FORMAT_PATTERNS
from gateway.parsing.argument_types import MAX_REFERENCES, fits, referred, type_of, types
from gateway.parsing.calls import Text

MAX_PARTS = 500  # of a schema with all that it refers to, and kinds of strings that come of them
_CHOICES = {"anyOf", "oneOf"}
_MEMBERS = _CHOICES | {"allOf"}
_VALUES = {"enum", "const"}
_NOT_SPELLED = {"allOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SPACE = r"[\s\x1c-\x1f]*"
_INTEGER = "-?(?:0|[1-9][0-9]*)"
_SPELLED = {
    "null": "null|None",
    "boolean": "true|false|True|False",
    "integer": _INTEGER,
    "number": rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?",
}
_BEGINS = {"object": r"\{", "array": r"\[", "integer": "-?[0-9]", "number": "-?[0-9]"} | {
    kind: _SPELLED[kind] for kind in ("null", "boolean")
}


class NotPlain(Exception):
    """A schema says what no regex of plain text can say."""


def plain(schema: Any, kinds: frozenset[str], root: Mapping[str, Any]) -> tuple[tuple[Text, ...], Any]:
    """The values of `schema`, a part of `root`, that are of these types: as text; and the schema of those that are
    JSON, None if there are none. Raises NotPlain.
    """
    schema = _inlined(schema, root, iter(range(MAX_PARTS)))
    strings = _strings(schema) if "string" in kinds else []
    if not strings:
        return (), _narrowed(schema, kinds - {"string"})
    if not isinstance(schema, Mapping) or not schema.keys() - {"type"}:
        return (Text(),), None  # any text spells some value
    spelled, unlike, rest = list[Text](), list[str](), frozenset[str]()
    for kind in _wide(types(schema) & kinds - {"string"}):
        if (values := _spelled(schema, kind)) is None:
            rest |= {kind, "integer"} if kind == "number" else {kind}
            unlike.append(f"{_SPACE}(?:{_BEGINS[kind]}){regex.ANYTHING}")
        else:
            unlike.append(f"{_SPACE}(?:{_SPELLED[kind]}){_SPACE}")
            spelled += [Text(patterns=("|".join(values),))] if values else []
    told = [replace(each, unlike="|".join(unlike) or None) for each in strings]
    return (*told, *spelled), _narrowed(schema, rest) if rest else None


def _inlined(schema: Any, root: Mapping[str, Any], left: Iterator[int], depth: int = 0) -> Any:
    """`schema` with what it and its members refer to in place of the references. Raises NotPlain if that never ends, or
    makes more parts than are `left`.
    """
    if depth > MAX_REFERENCES or next(left, None) is None:
        raise NotPlain
    if not isinstance(schema, Mapping):
        return schema
    inside = partial(_inlined, root=root, left=left, depth=depth + 1)
    if "$ref" in schema:
        target, rest = referred(root, schema["$ref"]), {key: schema[key] for key in schema if key != "$ref"}
        return inside({"allOf": [target, rest]} if rest else target)
    return {**schema, **{key: [inside(each) for each in schema[key]] for key in _MEMBERS & {*schema}}}


def _wide(kinds: Iterable[str]) -> list[str]:
    """`kinds` without integers among numbers."""
    kinds = set(kinds)
    return sorted(kinds - ({"integer"} if "number" in kinds else set()))


def _strings(schema: Any) -> list[Text]:
    """The strings that fit `schema`: what each kind of them is like."""
    if schema is False or "string" not in types(schema):
        return []
    if not isinstance(schema, Mapping):
        return [Text()]
    found = _said(schema)
    either = [[each for part in schema[key] for each in _strings(part)] for key in _CHOICES & {*schema}]
    if "oneOf" in schema and max(map(len, either)) > 1:
        raise NotPlain  # a text may fit several, and must fit one
    for members in [*either, *map(_strings, schema.get("allOf", ()))]:
        if len(found) * len(members) > MAX_PARTS:
            raise NotPlain
        found = [_both(one, other) for one in found for other in members]
    return found


def _said(schema: Mapping[str, Any]) -> list[Text]:
    """What a schema says of strings, but for the schemas in it: one kind, or none."""
    patterns = []
    for values in _values(schema):
        choices = [each for each in values if isinstance(each, str)]
        if not choices:
            return []
        patterns.append("|".join(map(regex.escaped, choices)))
    try:
        if "pattern" in schema:
            patterns.append(regex.whole(schema["pattern"]))
        if "format" in schema:
            patterns.append(FORMAT_PATTERNS[schema["format"]])
    except (ValueError, KeyError):
        raise NotPlain from None
    return [Text(schema.get("minLength", 0), schema.get("maxLength"), tuple(patterns))]


def _both(one: Text, other: Text) -> Text:
    bounds = [each.most for each in (one, other) if each.most is not None]
    return Text(max(one.least, other.least), min(bounds, default=None), one.patterns + other.patterns)


def _spelled(schema: Any, kind: str) -> list[str] | None:
    """The values of `schema` that are of a type, as regexes; None if none can tell them."""
    schema = _narrowed(schema, frozenset({kind, "integer"} if kind == "number" else {kind}))
    if schema is None or kind not in _SPELLED:
        return [] if kind in _SPELLED else None
    said = schema.keys() & (_NOT_SPELLED | _CHOICES | _VALUES)
    if len(said) > 1 or said & _NOT_SPELLED:
        return None
    if said & _CHOICES:
        return _spelled_by_one(schema[said.pop()], kind, alone="oneOf" in schema)
    values = [each for listed in _values(schema) for each in listed if fits(type_of(each), frozenset({kind}))]
    return [regex.escaped(json.dumps(each)) for each in values] if said else [_SPELLED[kind]]


def _spelled_by_one(members: list[Any], kind: str, *, alone: bool) -> list[str] | None:
    """The same, of values that fit one of `members`, and no other if `alone`."""
    found = [_spelled(each, kind) for each in members]
    if None in found or (alone and len(found) > 1):
        return None
    return [each for values in found for each in values or ()]


def _narrowed(schema: Any, kinds: frozenset[str]) -> Any:
    """The schema of the values of `schema` that are of these types; None if there are none."""
    allowed = types(schema) & kinds
    if not allowed or schema is False:
        return None
    if not isinstance(schema, Mapping):
        return {"type": sorted(allowed)}
    if "const" in schema and not fits(type_of(schema["const"]), allowed):
        return None
    left = {
        key: [part for each in schema[key] if (part := _narrowed(each, kinds)) is not None]
        for key in _CHOICES & {*schema}
    }
    if "enum" in schema:
        left["enum"] = [each for each in schema["enum"] if fits(type_of(each), allowed)]
    return {**schema, "type": sorted(allowed), **left} if all(left.values()) else None


def _values(schema: Mapping[str, Any]) -> list[list[Any]]:
    """The lists of values that a schema has, each of which a value has to be in."""
    return [schema[key] if key == "enum" else [schema[key]] for key in sorted(_VALUES & {*schema})]
