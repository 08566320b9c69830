"""Values that a call holds as plain text: what a schema says of them, as regexes.

Strings stand in a call as they are, other values as JSON. Read back, a text that spells a value of another type is of
that type, if the schema allows it. So where a schema allows strings and others, its strings are not to be like those.
What of the others a regex can tell is part of the same terminal: llguidance's lexer goes on with the longest, and would
never end at a `null` that may become a longer string.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gateway.grammar import regex
from gateway.grammar.format_patterns import FORMAT_PATTERNS
from gateway.parsing.argument_types import MAX_REFERENCES, fits, followed, type_of, types
from gateway.parsing.calls import Text

_CHOICES = {"anyOf", "oneOf"}
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
    strings = _strings(schema, root) if "string" in kinds else []
    if not strings:
        return (), _narrowed(schema, kinds - {"string"}, root)
    if not isinstance(schema, Mapping) or not schema.keys() - {"type"}:
        return (Text(),), None  # any text spells some value
    spelled, unlike, rest = list[Text](), list[str](), frozenset[str]()
    for kind in _wide(types(followed(schema, root)) & kinds - {"string"}):
        if (values := _spelled(schema, kind, root)) is None:
            rest |= {kind, "integer"} if kind == "number" else {kind}
            unlike.append(f"{_SPACE}(?:{_BEGINS[kind]}){regex.ANYTHING}")
        else:
            unlike.append(f"{_SPACE}(?:{_SPELLED[kind]}){_SPACE}")
            spelled += [Text(patterns=("|".join(values),))] if values else []
    told = [replace(each, unlike="|".join(unlike) or None) for each in strings]
    return (*told, *spelled), _narrowed(schema, rest, root) if rest else None


def _wide(kinds: Iterable[str]) -> list[str]:
    """`kinds` without integers among numbers."""
    kinds = set(kinds)
    return sorted(kinds - ({"integer"} if "number" in kinds else set()))


def _strings(schema: Any, root: Mapping[str, Any], depth: int = 0) -> list[Text]:
    """The strings that fit `schema`: what each kind of them is like."""
    schema = followed(schema, root)
    if depth > MAX_REFERENCES:
        raise NotPlain
    if schema is False or "string" not in types(schema):
        return []
    if not isinstance(schema, Mapping):
        return [Text()]
    found = _said(schema)
    either = [
        [each for part in schema[key] for each in _strings(part, root, depth + 1)] for key in _CHOICES & {*schema}
    ]
    if "oneOf" in schema and max(map(len, either)) > 1:
        raise NotPlain  # a text may fit several, and must fit one
    for members in [*either, *(_strings(part, root, depth + 1) for part in schema.get("allOf", ()))]:
        found = [_both(one, other) for one in found for other in members]
    return found


def _said(schema: Mapping[str, Any]) -> list[Text]:
    """What a schema says of strings, but for the schemas in it: one kind, or none."""
    patterns = []
    if _VALUES & schema.keys():
        choices = [each for each in _values(schema) if isinstance(each, str)]
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


def _spelled(schema: Any, kind: str, root: Mapping[str, Any]) -> list[str] | None:
    """The values of `schema` that are of a type, as regexes; None if none can tell them."""
    schema = _narrowed(schema, frozenset({kind, "integer"} if kind == "number" else {kind}), root)
    if schema is None:
        return []
    said = {*schema} & (_NOT_SPELLED | _CHOICES | _VALUES)
    if not said and kind in _SPELLED:
        return [_SPELLED[kind]]
    if said <= _VALUES and kind in _SPELLED:
        return [regex.escaped(json.dumps(each)) for each in _values(schema) if fits(type_of(each), frozenset({kind}))]
    if len(said) > 1 or not said <= _CHOICES:
        return None
    members = [_spelled(each, kind, root) for each in schema[said.pop()]]
    several = "oneOf" in schema and len(members) > 1
    return None if several or None in members else [each for found in members for each in found or ()]


def _narrowed(schema: Any, kinds: frozenset[str], root: Mapping[str, Any]) -> Any:
    """The schema of the values of `schema` that are of these types; None if there are none."""
    schema = followed(schema, root)
    allowed = types(schema) & kinds
    if not allowed or schema is False:
        return None
    if not isinstance(schema, Mapping):
        return {"type": sorted(allowed)}
    fields = {**schema, "type": sorted(allowed)}
    if "enum" in schema:
        fields["enum"] = [each for each in schema["enum"] if fits(type_of(each), allowed)]
    for key in _CHOICES & {*schema}:
        fields[key] = [part for each in schema[key] if (part := _narrowed(each, kinds, root)) is not None]
    return fields


def _values(schema: Mapping[str, Any]) -> list[Any]:
    return list(schema["enum"]) if "enum" in schema else [schema["const"]]
