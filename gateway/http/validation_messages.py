"""What pydantic found wrong with a body, in our words: field, what it must be, what was given.

A value that fits no branch of a union is wrong once, not once per branch: of several complaints about one field those
about its type are joined, and they go where another branch got further. Text that a client sent is never echoed.
"""

from typing import Any

from pydantic import ValidationError

MAX_PROBLEMS = 10  # told at once
MAX_CHARACTERS = 200  # of one
MAX_SHOWN = 24  # characters of a number shown in one

TYPES = {  # pydantic's name of the complaint: what the value must be
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
LIMITS = {  # likewise, with the names of its context
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "int_parsing_size": "must be a whole number of fewer digits",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "missing": "is required",
}


def described(error: ValidationError) -> tuple[str, str | None]:
    """All of it in one line of bounded length, and the first field that is wrong, if it is a field."""
    found: dict[str, list[Any]] = {}
    for problem in error.errors(include_url=False):
        found.setdefault(_field(problem["loc"]), []).append(problem)
    above = {field[:at] for field in found for at, character in enumerate(field) if character in ".["}
    fields = [field for field, problems in found.items() if field not in above or not _only_of_types(problems)]
    lines = [_line(field, found[field]) for field in fields[:MAX_PROBLEMS]]
    more = f" (and {len(fields) - MAX_PROBLEMS} more)" if len(fields) > MAX_PROBLEMS else ""
    return "; ".join(lines) + more, fields[0] or None


def _only_of_types(problems: list[Any]) -> bool:
    """Above others' fields: the branches of a union whose other branch complains of what lies below."""
    return all(problem["type"] in TYPES for problem in problems)


def _line(field: str, problems: list[Any]) -> str:
    others = [problem for problem in problems if problem["type"] not in TYPES]
    if others:
        message = _message(others[0])
    else:
        message = "must be " + " or ".join(dict.fromkeys(TYPES[problem["type"]] for problem in problems))
    return f"{field + ': ' if field else 'the body '}{message}"[:MAX_CHARACTERS] + _given(problems[0])


def _message(problem: Any) -> str:
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    limits = problem.get("ctx", {})
    if limits.get("min_length") == 1:
        return "must not be empty"
    plain = {name: f"{value:g}" if isinstance(value, float) else value for name, value in limits.items()}
    return LIMITS.get(problem["type"], "is not valid").format(**plain)


def _given(problem: Any) -> str:
    """The value where it is a number, its length where that was the matter."""
    value, kind = problem["input"], problem["type"]
    if kind == "missing":
        return ""
    if kind.endswith("too_long"):
        return f" (given {len(value)})"
    if isinstance(value, bool):
        return f" (given {str(value).lower()})"
    shown = str(value) if isinstance(value, int | float) else ""
    return f" (given {shown})" if shown and len(shown) <= MAX_SHOWN else ""


def _field(location: tuple[int | str, ...]) -> str:
    """`("stop", "list[str]", 0)` as `stop[0]`: names of union branches say nothing to a client."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path[:100]
