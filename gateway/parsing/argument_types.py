"""Arguments that are written as plain text, typed by the schema of the tool."""

import json
from collections.abc import Mapping
from typing import Any

_ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_SPELLINGS = {"True": "true", "False": "false", "None": "null"}


def types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so at its top; all if it says nothing."""
    if not isinstance(schema, Mapping):
        return _ANY
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(filter(_ANY.__contains__, declared)) or _ANY
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(map(type_of, values)) or _ANY
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            return frozenset().union(*map(types, choices))
    return _ANY


def is_string(schema: Any) -> bool:
    """Whether every value is a string, so that text can be passed on before it is complete."""
    return types(schema) == {"string"}


def typed(text: str, schema: Any) -> str:
    """The JSON text of the value that `text` spells: a value of an allowed type, if it spells one, else a string."""
    allowed = types(schema)
    spelled = text.strip()
    for candidate in (spelled, _SPELLINGS.get(spelled, "")):
        kind = _kind(candidate)
        if kind is not None and kind != "string" and _fits(kind, allowed):
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


def _fits(kind: str, allowed: frozenset[str]) -> bool:
    return kind in allowed or (kind == "integer" and "number" in allowed)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
