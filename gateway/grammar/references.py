"""Where the references of a JSON schema lead, within that schema."""

from functools import cached_property
from typing import Any
from urllib.parse import unquote

MAX_CHAIN = 8  # references that lead to references


class References:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def find(self, path: str) -> Any:
        """The schema at the JSON pointer `path` (`/$defs/a`, decoded), or of that `$anchor`; None if there is none."""
        if path and not path.startswith("/"):
            return self._anchored.get(path)
        value: Any = self._root
        for part in path.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
                value = value[int(name[:9])]
            else:
                return None
        return value if isinstance(value, dict | bool) else None

    def of(self, reference: str) -> Any:
        """What a `$ref` within the schema leads to."""
        return self.find(unquote(reference[1:]))

    def resolved(self, schema: Any) -> Any:
        """`schema`, or what it refers to if it says nothing else."""
        for _ in range(MAX_CHAIN):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"} or not str(schema["$ref"]).startswith("#"):
                break
            schema = self.of(str(schema["$ref"]))
        return schema

    @cached_property
    def _anchored(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        waiting: list[Any] = [self._root]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                if isinstance(anchor := value.get("$anchor"), str):
                    found[anchor] = value
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        return found
