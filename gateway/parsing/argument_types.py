"""Arguments that are written as plain text, typed by the schema of the tool."""

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_REFERENCES = 16  # that are followed one after the other
_SHARED = ("$defs", "definitions", "x-guidance")
_OF_THE_WHOLE = frozenset(
    ("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "patternProperties", "minProperties", "maxProperties")
)
ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_REFERENCE = re.compile(r'"\$ref": "(?!#/(?:\$defs|definitions)/)')
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}


def with_shared(schema: Any, root: Mapping[str, Any]) -> str:
    """The schema of an argument as JSON text, with what the whole schema, `root`, shares among its parts."""
    shared = {key: root[key] for key in _SHARED if key in root}
    if isinstance(schema, Mapping):
        return json.dumps({**schema, **shared})
    return json.dumps({**shared, **({} if schema else {"not": {}})})


def properties(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of a tool's arguments, their references to other parts of `parameters` followed."""
    declared = parameters.get("properties")
    return {key: followed(each, parameters) for key, each in declared.items()} if isinstance(declared, Mapping) else {}


def listed(parameters: Mapping[str, Any]) -> bool:
    """Whether the arguments can be written one by one: `properties` names them, and each fits or not by itself."""
    names = parameters.get("properties")
    named = isinstance(names, Mapping) and names.keys() >= set(parameters.get("required", ()))
    return named and not _OF_THE_WHOLE & parameters.keys() and not _REFERENCE.search(json.dumps(parameters))


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """`schema` with what its reference points at, also in its choices: enough to tell the types of its values."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            break
        target = referred(root, reference)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **rest} if isinstance(target, Mapping) else rest
    if not isinstance(schema, Mapping):
        return schema
    choices = {key: schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)}
    return {**schema, **{key: [_merged(each, root) for each in members] for key, members in choices.items()}}


def _merged(schema: Any, root: Mapping[str, Any]) -> Any:
    """A choice that is a reference, as what it points at."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    return referred(root, reference) if isinstance(reference, str) else schema


def referred(root: Any, reference: str) -> Any:
    """What a reference within `root` points at, None if nothing."""
    for name in reference.removeprefix("#").split("/")[1:]:
        root = root.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so at its top; all if it says nothing."""
    if not isinstance(schema, Mapping):
        return ANY
    return _types(schema) | ({"null"} if schema.get("nullable") is True else set())


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return ANY.intersection(each for each in declared if isinstance(each, str)) or ANY
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(map(type_of, values)) or ANY
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            return frozenset().union(*map(types, choices))
    if isinstance(parts := schema.get("allOf"), list) and parts:
        return frozenset(ANY).intersection(*map(types, parts)) or ANY
    return ANY


def is_string(schema: Any) -> bool:
    """Whether every value is a string, so that text can be passed on before it is complete."""
    return types(schema) == {"string"}


def typed(text: str, schema: Any) -> str:
    """The JSON text of the value that `text` spells: a value of an allowed type, if it spells one, else a string."""
    allowed = types(schema)
    spelled = text.strip()
    for candidate in (spelled, _SPELLINGS.get(spelled, "")):
        kind = _kind(candidate)
        if kind is not None and kind != "string" and fits(kind, allowed):
            return candidate
    if "string" not in allowed and _kind(spelled) is not None:
        return spelled  # not what the schema asks for, but what the model wrote
    return quoted(text)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """`text` as a part of a JSON string."""
    return quoted(text)[1:-1]


def type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds = ((int, "integer"), (float, "number"), (str, "string"), (Mapping, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def _kind(text: str) -> str | None:
    """The type of the JSON value that `text` spells, None if it spells none."""
    try:
        return type_of(json.loads(text, parse_constant=_refuse, parse_int=_number))
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> int:
    """Any integer: Python refuses to convert the longest ones, and only the type counts."""
    return 0


def fits(kind: str, allowed: frozenset[str]) -> bool:
    """Whether a value of type `kind` is of one of the types `allowed`."""
    return kind in allowed or (kind == "integer" and "number" in allowed)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
