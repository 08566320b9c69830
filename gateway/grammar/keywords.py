"""What becomes of each keyword of a JSON schema: llguidance enforces it, it has no effect, or it is refused by name.

llguidance 1.9.1 ignores keywords that the draft named by `$schema` lacks, such as `if` in draft 4. A client that wrote
one meant it. So `$schema` is dropped: llguidance then reads the newest draft, and the older drafts' spellings of it
(`definitions`, `items` as a list, `exclusiveMinimum: true`); and whatever any draft knows and llguidance does not
enforce is in `UNENFORCED`. Words that no draft knows constrain nothing, by the standard.
"""

import re
from typing import Any

# Where schemas are inside a schema.
SCHEMA = ("additionalProperties", "items", "additionalItems")
SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")

# Dropped. `$schema`: see above. `$id`: see `json_schema`. `discriminator`, `xml`, …: OpenAPI's.
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "id", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema"),
        *("discriminator", "xml", "externalDocs", "x-guidance"),
    }
)

# By name, the values that ask for nothing.
UNENFORCED: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (True,),
    "then": (True,),
    "else": (True,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "uniqueItems": (False,),
    "contains": (),
    "minContains": (0,),
    "maxContains": (),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
    # of draft 3
    "extends": ({}, []),
    "disallow": ([],),
    "divisibleBy": (),
}

ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_bound(value: Any) -> bool:
    return _is_number(value) or isinstance(value, bool)  # draft 4 says true beside `minimum`


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _are_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and bool(names) and all(name in TYPES for name in names)


# By name, what its value must be, and whether it is that.
SHAPES = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), ("a list of schemas, not empty", _are_schemas)),
    **dict.fromkeys(NAMED_SCHEMAS, ("an object whose values are schemas", _are_named_schemas)),
    **dict.fromkeys(("additionalProperties", "additionalItems"), ("a schema", _is_schema)),
    "items": ("a schema or a list of schemas", lambda value: _is_schema(value) or _are_schemas(value)),
    **dict.fromkeys(("$ref", "pattern", "format"), ("a string", _is_text)),
    "$anchor": ("a name", lambda value: _is_text(value) and ANCHOR.fullmatch(value) is not None),
    "required": ("a list of names", _are_texts),
    "enum": ("a list, not empty", lambda value: isinstance(value, list) and bool(value)),
    "type": (f"one of {', '.join(TYPES)}, or a list of these", _are_types),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        ("a whole number, at least 0", _is_count),
    ),
    **dict.fromkeys(("minimum", "maximum"), ("a number", _is_number)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ("a number", _is_bound)),
    "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "nullable": ("true or false", lambda value: isinstance(value, bool)),
}

# Formats that describe no set of strings or of numbers, and OpenAPI's formats of whole numbers, which are bounds.
HINT_FORMATS = frozenset({"password", "binary", "path", "file-path", "directory-path", "float", "double"})
INTEGER_FORMATS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "uint": (0, 2**64 - 1),
}
