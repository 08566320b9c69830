"""Messages for bodies that pydantic refuses: the field, what it must be, and what was given.

pydantic reports a value that fits no branch of a union once per branch. Here it is reported once: errors about the type
of one field are joined, and left out if another branch accepted the type and found an error further inside. Text that a
client sent is never repeated.
"""

from typing import Any

from pydantic import ValidationError

MAX_FIELDS = 10  # in one message
MAX_CHARACTERS = 200  # for one field
MAX_SHOWN = 24  # characters of a number that is repeated

TYPES = {  # pydantic's type of error: what the value must be
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
LITERAL = "literal_error"  # whose context names the values
LIMITS = {  # likewise, with names of values in the error's context
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "int_parsing_size": "must be a whole number of fewer digits",
    "finite_number": "must be a finite number",
    "missing": "is required",
}


def describe(error: ValidationError) -> tuple[str, str | None]:
    """One line of bounded length about all wrong fields, and the name of the first; None if the whole body is wrong."""
    found: dict[str, list[Any]] = {}
    for each in error.errors(include_url=False):
        found.setdefault(_field(each["loc"]), []).append(each)
    parents = {field[:at] for field in found for at, character in enumerate(field) if character in ".["}
    fields = [field for field, errors in found.items() if field not in parents or not _only_of_types(errors)]
    lines = [_line(field, found[field]) for field in fields[:MAX_FIELDS]]
    more = f" (and {len(fields) - MAX_FIELDS} more)" if len(fields) > MAX_FIELDS else ""
    return "; ".join(lines) + more, fields[0] or None


def _only_of_types(errors: list[Any]) -> bool:
    """Whether all errors are about the type. In a parent of other wrong fields they are of a union's other branches."""
    return all(error["type"] in TYPES for error in errors)


def _line(field: str, errors: list[Any]) -> str:
    others = [error for error in errors if error["type"] not in (*TYPES, LITERAL)]
    if others:
        message = _message(others[0])
    else:
        wanted = (error["ctx"]["expected"] if error["type"] == LITERAL else TYPES[error["type"]] for error in errors)
        message = "must be " + " or ".join(dict.fromkeys(wanted))
    return f"{field + ': ' if field else 'the body '}{message}"[:MAX_CHARACTERS] + _given(errors[0])


def _message(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    limits = error.get("ctx", {})
    if limits.get("min_length") == 1:
        return "must not be empty"
    plain = {name: f"{value:g}" if isinstance(value, float) else value for name, value in limits.items()}
    return LIMITS.get(error["type"], "is not valid").format(**plain)


def _given(error: Any) -> str:
    """The given value if it is a number or a boolean; its length if it is too long."""
    value, kind = error["input"], error["type"]
    if kind == "missing":
        return ""
    if kind.endswith("too_long"):
        return f" (given {len(value)})"
    if isinstance(value, bool):
        return f" (given {str(value).lower()})"
    shown = str(value) if isinstance(value, int | float) else ""
    return f" (given {shown})" if shown and len(shown) <= MAX_SHOWN else ""


def _field(location: tuple[int | str, ...]) -> str:
    """`("stop", "list[str]", 0)` as `stop[0]`: the types and classes of a union mean nothing to a client."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and not part[0].isupper() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path[:100]
