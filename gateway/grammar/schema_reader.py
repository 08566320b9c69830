"""A JSON schema read node by node: what it may hold, and how some of it is rewritten.

The bounds are on what makes llguidance slow [1.9.1, 49,152 ids, first mask]: a literal of 100 kB takes 0.2 s, 5,000
properties of one object 33 s, `anyOf` of 2,000 objects 5.6 s. What is still slow is stopped by the engine.

Two rewrites, besides those of `bounds`. An `oneOf` whose members can be told apart is an `anyOf`: llguidance can prove
that only where there are no references. `nullable` is a union with null, as in OpenAPI: JSON Schema has no such word,
so a model could not write the null that the client is prepared for.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from gateway.grammar import regex
from gateway.grammar.alternatives import told_apart
from gateway.grammar.bounds import EXACT, draw_in
from gateway.grammar.closing import close, close_all, give_types
from gateway.grammar.formats import ENFORCED_FORMATS
from gateway.grammar.keywords import (
    ANNOTATIONS,
    HINT_FORMATS,
    INTEGER_FORMATS,
    NAMED_SCHEMAS,
    SCHEMA,
    SCHEMAS,
    SHAPES,
    UNENFORCED,
)
from gateway.grammar.references import References

MAX_SCHEMAS = 5_000  # inside each other; to read so many takes 50 ms
MAX_PROPERTIES = 1_000  # of one object
MAX_OPTIONAL = 300  # of these in a row: any of them may come next; see `LIMITS` in `jaxengine.grammar.source`
MAX_ENUM_VALUES = 5_000  # in all
MAX_MEMBERS = 500  # of every anyOf and oneOf together
MAX_REFERENCES = 200
MAX_PATTERN_CHARACTERS = 65_536  # of all patterns: to check so many takes 50 ms
MAX_LITERAL_CHARACTERS = 8_192
MAX_SHOWN = 120  # characters of a place, or of a format's name


class SchemaReader:
    """Checks and rewrites a schema in place, node by node. `ValueError` says what is wrong with it, and where.

    closed: objects get no properties but those that they declare, see `closing`.
    """

    def __init__(self, root: dict[str, Any], *, closed: bool = False) -> None:
        self.root = root
        self._id = root.get("$id")
        self._references = References(root)
        self._enum_values = self._members = self._reference_count = self._pattern_characters = 0
        waiting: list[tuple[Any, str]] = [(root, "#")]
        read: dict[int, dict[str, Any]] = {}
        while waiting:
            node, place = waiting.pop()
            if isinstance(node, dict) and id(node) not in read:
                read[id(node)] = self._node = node
                self._place = place
                waiting += self._read()
                if len(read) > MAX_SCHEMAS:
                    raise self._wrong(f"the schema holds more than {MAX_SCHEMAS} schemas")
        nodes = [each for node in read.values() for each in _united_with_null(node)]
        for node in nodes:
            self._read_one_of(node)
        give_types(nodes, self._references)
        (close_all if closed else close)(nodes, self._references)

    def _read(self) -> list[tuple[Any, str]]:
        """Check the node; the schemas inside it or that it refers to, each with its place."""
        node = self._node
        self._drop_annotations()
        for name in [each for each in node if each in UNENFORCED]:
            if node.pop(name) not in UNENFORCED[name]:
                raise self._wrong(f"{name} cannot be enforced")
        self._check_shapes()
        self._check_literals()
        self._check_sizes()
        self._check_patterns()
        self._read_format()
        self._draw_in_bounds()
        below = list(self._below())
        if "$ref" in node:
            below.append((self._target(), _cut(node["$ref"])))
        return below

    def _wrong(self, reason: str) -> ValueError:
        return ValueError(f"{reason} (at {self._place})")

    def _drop_annotations(self) -> None:
        node = self._node
        base = node.get("$id")
        if base is not None and node is not self.root and not str(base).startswith("#"):
            raise self._wrong("$id below the root is not supported")
        for name in ANNOTATIONS & node.keys():
            del node[name]

    def _check_shapes(self) -> None:
        node = self._node
        for name in node.keys() & SHAPES.keys():
            value = node[name]
            if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
                value = node[name] = int(value)  # 1.0 is a whole number in JSON Schema
            words, holds = SHAPES[name]
            if not holds(value):
                raise self._wrong(f"{name} must be {words}")

    def _check_literals(self) -> None:
        node = self._node
        literals = [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
        for value in _scalars([literals, list(node.get("properties", ())), node.get("required", [])]):
            if isinstance(value, str) and len(value) > MAX_LITERAL_CHARACTERS:
                raise self._wrong(f"a text has {len(value)} characters, at most {MAX_LITERAL_CHARACTERS} are allowed")
            if isinstance(value, int | float) and abs(value) > EXACT:
                raise self._wrong("a number beyond 2^53 cannot be enforced")

    def _check_sizes(self) -> None:
        node = self._node
        self._enum_values += len(node.get("enum", ()))
        self._members += len(node.get("anyOf", ())) + len(node.get("oneOf", ()))
        self._reference_count += "$ref" in node
        self._pattern_characters += len(node.get("pattern", "")) + sum(map(len, node.get("patternProperties", ())))
        for count, most, things in (
            (len(node.get("properties", ())), MAX_PROPERTIES, "properties of one object"),
            (_optional_in_a_row(node), MAX_OPTIONAL, "optional properties of one object with no required one between"),
            (self._enum_values, MAX_ENUM_VALUES, "values of enum"),
            (self._members, MAX_MEMBERS, "members of anyOf and oneOf"),
            (self._reference_count, MAX_REFERENCES, "references"),
            (self._pattern_characters, MAX_PATTERN_CHARACTERS, "characters of patterns"),
        ):
            if count > most:
                raise self._wrong(f"the schema has more than {most} {things}")

    def _check_patterns(self) -> None:
        node = self._node
        try:
            for pattern in node.get("patternProperties", ()):
                regex.checked(pattern)
            if "pattern" in node:
                node["pattern"] = regex.checked(node["pattern"])
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _read_format(self) -> None:
        """Leave a format that is enforced; formats are of strings, and OpenAPI's of numbers."""
        node, types = self._node, self._types()
        name = node.get("format")
        if name is None:
            return
        if name in ENFORCED_FORMATS and "string" in types:
            if (pattern := ENFORCED_FORMATS[name]) is not None:
                node["allOf"] = [*node.get("allOf", ()), {"pattern": pattern}]
            return
        if name in INTEGER_FORMATS and "string" not in types:
            low, high = INTEGER_FORMATS[name]
            node["minimum"], node["maximum"] = max(low, node.get("minimum", low)), min(high, node.get("maximum", high))
        elif name not in HINT_FORMATS and types & {"string", "integer", "number"}:
            raise self._wrong(f"the format {json.dumps(name)[:MAX_SHOWN]} cannot be enforced")
        del node["format"]

    def _draw_in_bounds(self) -> None:
        try:
            draw_in(self._node, fractions="number" in self._types())
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _types(self) -> set[str]:
        given = self._node.get("type", ["string", "number"])
        return {given} if isinstance(given, str) else set(given)

    def _below(self) -> Iterator[tuple[Any, str]]:
        for name in self._node.keys() & {*SCHEMA, *SCHEMAS, *NAMED_SCHEMAS}:
            value, place = self._node[name], f"{self._place}/{name}/"
            if isinstance(value, list):
                yield from ((each, _cut(f"{place}{number}")) for number, each in enumerate(value))
            elif name in NAMED_SCHEMAS:
                yield from ((each, _cut(f"{place}{key}")) for key, each in value.items())
            else:
                yield value, _cut(place[:-1])

    def _target(self) -> Any:
        """What the node refers to; its `$ref` becomes one that llguidance reads whatever characters are in it."""
        node = self._node
        reference = node["$ref"]
        if self._id and reference.startswith(f"{self._id}#"):
            reference = reference.removeprefix(self._id)
        if not reference.startswith("#"):
            raise self._wrong("$ref must begin with #: nothing outside the schema is read")
        path = unquote(reference[1:])
        node["$ref"] = "#" + quote(path, safe="/~$-_.")
        target = self._references.find(path)
        if target is None:
            raise self._wrong("$ref names nothing in the schema")
        return target

    def _read_one_of(self, node: dict[str, Any]) -> None:
        if (
            "oneOf" in node
            and "anyOf" not in node
            and told_apart([self._references.resolved(each) for each in node["oneOf"]])
        ):
            _replace(node, {"anyOf" if name == "oneOf" else name: value for name, value in node.items()})


def _cut(place: str) -> str:
    """`place` as it is shown. Cut before it is kept: a long name is part of the place of every schema inside it."""
    return place if len(place) <= MAX_SHOWN else f"{place[:MAX_SHOWN]}…"


def _optional_in_a_row(node: dict[str, Any]) -> int:
    """The most properties of the object that follow each other and may all be left out."""
    required = set(node.get("required", ()))
    runs = itertools.groupby(node.get("properties", ()), lambda name: name not in required)
    return max((len(list(names)) for optional, names in runs if optional), default=0)


def _united_with_null(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The node, and, if it is nullable, what it was before null was added."""
    if not node.pop("nullable", False):
        return [node]
    definitions: dict[str, Any] = {name: node.pop(name) for name in ("$defs", "definitions") if name in node}
    alone = dict(node)
    _replace(node, {"anyOf": [alone, {"type": "null"}]} | definitions)
    return [node, alone]


def _replace(node: dict[str, Any], fields: dict[str, Any]) -> None:
    node.clear()
    node.update(fields)


def _scalars(value: Any) -> Iterator[Any]:
    """Every name and every value without parts inside `value`."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each
        else:
            yield each
