"""Where the references of a JSON schema lead, within that schema."""

from typing import Any
from urllib.parse import unquote

MAX_CHAIN = 8  # references that lead to references


def find(root: dict[str, Any], path: str) -> Any:
    """The value at the JSON pointer `path` (`/$defs/a`, decoded), or whose `$anchor` it is; None if there is none."""
    if path and not path.startswith("/"):
        return _anchored(root, path)
    value: Any = root
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value if isinstance(value, dict | bool) else None


def _anchored(root: dict[str, Any], name: str) -> Any:
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.get("$anchor") == name:
                return value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None


def resolved(root: dict[str, Any], schema: Any) -> Any:
    """`schema`, or what it refers to if it says nothing else."""
    for _ in range(MAX_CHAIN):
        if not isinstance(schema, dict) or schema.keys() != {"$ref"} or not str(schema["$ref"]).startswith("#"):
            break
        schema = find(root, unquote(str(schema["$ref"])[1:]))
    return schema
