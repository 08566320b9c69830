"""Whether no value can match two members of an `oneOf`, so that it means what an `anyOf` of them means.

Members are told apart by the type they demand, and objects by a property that each requires with values of its own,
as `discriminator` does in OpenAPI and in pydantic's unions.
"""

from typing import Any

Values = frozenset[str | bool | None]


def told_apart(members: list[Any]) -> bool:
    """Whether the members of an `oneOf`, references resolved, exclude each other. False where it is not obvious."""
    objects, seen = [], set[str]()
    for member in members:
        types = _types(member)
        if types == {"object"}:
            objects.append(member)
            continue
        if not types or types & seen or "object" in types:
            return False
        seen |= types | ({"integer", "number"} if types & {"integer", "number"} else set())
    return len(objects) < 2 or _have_own_values([_required_values(each) for each in objects])


def _types(schema: Any) -> set[str]:
    """The types that the schema demands; empty if that is not obvious."""
    given = schema.get("type", []) if isinstance(schema, dict) else []
    return {given} if isinstance(given, str) else set(given)


def _required_values(schema: dict[str, Any]) -> dict[str, Values]:
    """By name of a required property, the only values that it may have."""
    properties, found = schema.get("properties", {}), {}
    for name in schema.get("required", ()):
        of = properties.get(name)
        values = of.get("enum", [of["const"]] if "const" in of else []) if isinstance(of, dict) else []
        if values and all(isinstance(each, str | bool | None) for each in values):
            found[name] = frozenset(values)
    return found


def _have_own_values(objects: list[dict[str, Values]]) -> bool:
    shared = set(objects[0]).intersection(*objects[1:])
    for name in shared:
        each = [values[name] for values in objects]
        if sum(map(len, each)) == len(frozenset().union(*each)):
            return True
    return False
