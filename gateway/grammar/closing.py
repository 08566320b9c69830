"""What a schema leaves open and its client does not expect: objects that declare properties and say nothing of others
get no others, and a schema that declares properties and no type is of objects, one that declares items of lists.

That is what TGI's and vLLM's libraries do, and what clients expect: a weak model would go on inventing names until its
last token. Whatever a closed schema allows, the open one allows too. But schemas that are merged with others (`allOf`,
or `properties` beside `$ref`) would forbid each other's properties: they stay open. And where llguidance has to prove
the members of an `oneOf` disjoint, it could find closed ones disjoint that are not: nothing is closed there.

A client may ask, by vLLM's `disable_additional_properties`, that all are closed: then what has to stay open is refused.
"""

from collections.abc import Iterable
from typing import Any

from gateway.grammar.references import References

IN_PLACE = {"allOf", "anyOf", "oneOf", "$ref"}  # what these say is of the same value
OF_OBJECTS = IN_PLACE | {
    *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties")
}
UNTYPED = IN_PLACE | {"type", "enum", "const"}  # with these it is clear enough, or not ours to say
DECLARING = {"properties", "patternProperties"}
DECLARED_TYPES = {"properties": "object", "patternProperties": "object", "items": "array", "prefixItems": "array"}
SAYS_MORE = OF_OBJECTS - {"properties", "required"}


def give_types(nodes: Iterable[dict[str, Any]], references: References) -> None:
    """Give a type to those of `nodes`, the root first, that have none and whose keywords are of one type."""
    every = list(nodes)
    merged = _merged(every, references)
    alone = every[:1] if any("oneOf" in node for node in every) else every
    for node in alone:
        types = {DECLARED_TYPES[name] for name in node.keys() & DECLARED_TYPES.keys()}
        if len(types) == 1 and not UNTYPED & node.keys() and id(node) not in merged:
            node["type"] = types.pop()


def close(nodes: Iterable[dict[str, Any]], references: References) -> None:
    """Close what can be closed of `nodes`, which are all schemas of a schema."""
    every = list(nodes)
    if any("oneOf" in node for node in every):
        return
    merged = _merged(every, references)
    for node in every:
        declared = node.get("properties", {}).keys()
        says_all = "properties" in node and not SAYS_MORE & node.keys() and declared >= set(node.get("required", ()))
        if says_all and id(node) not in merged:
            node["additionalProperties"] = False


def close_all(nodes: Iterable[dict[str, Any]], references: References) -> None:
    """Close all of `nodes` that declare properties and do not say what others are. Raises ValueError."""
    every = list(nodes)
    merged = _merged(every, references)
    for node in every:
        if DECLARING & node.keys() and "additionalProperties" not in node:
            if id(node) in merged:
                raise ValueError("disable_additional_properties is not supported where schemas are merged (allOf, …)")
            node["additionalProperties"] = False


def _merged(nodes: list[dict[str, Any]], references: References) -> set[int]:
    """The identities of all that may be merged with another schema: a merging schema and whatever is inside it."""
    found: set[int] = set()
    waiting: list[Any] = [node for node in nodes if _merges(node)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict) and id(part) not in found:
            found.add(id(part))
            waiting += part.values()
            if isinstance(reference := part.get("$ref"), str):
                waiting.append(references.of(reference))
    return found


def _merges(node: dict[str, Any]) -> bool:
    return bool(IN_PLACE & node.keys()) and (len(OF_OBJECTS & node.keys()) > 1 or len(node.get("allOf", ())) > 1)
