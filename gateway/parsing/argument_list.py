"""Arguments that stand one after another with something between them, as grammars write them."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.parsing.argument_types import listed
from gateway.parsing.calls import Arguments, Either, Optional, Part, UpTo
from gateway.parsing.plain_text import NotPlain

# Of a name and the schema of its value, a part of the last: its argument. Raises NotPlain.
WriteArgument = Callable[[str, Any, Mapping[str, Any]], Sequence[Part]]


def one_by_one(arguments: Arguments, write: WriteArgument, between: str) -> list[Part]:
    """Raises NotPlain if there is an argument that has no name, or none that can be written."""
    root = json.loads(arguments.schema)
    if arguments.names:
        return any_of(arguments.names, root, write, between)
    if not listed(root):
        raise NotPlain
    return _in_order(root, write, between)


def any_of(names: Sequence[str], root: Mapping[str, Any], write: WriteArgument, between: str) -> list[Part]:
    """Arguments of these names with any values."""
    return [UpTo(len(names), (Either(tuple(tuple(write(name, {}, root)) for name in names)),), between)]


def _in_order(root: Mapping[str, Any], write: WriteArgument, between: str) -> list[Part]:
    """Those that must be there come first. Without any, one may be there if those before it are."""
    properties = root.get("properties", {})
    required = [key for key in properties if key in root.get("required", ())]
    optional = [tuple(write(key, properties[key], root)) for key in properties if key not in required]
    parts: list[Part] = []
    for key in required:
        parts += [*([between] if parts else []), *write(key, properties[key], root)]
    if parts:
        return [*parts, *(Optional((between, *each)) for each in optional)]
    return list(_nested(optional, between))


def _nested(arguments: Sequence[tuple[Part, ...]], between: str) -> tuple[Part, ...]:
    """Each may be left out together with all that follow it."""
    rest: tuple[Part, ...] = ()
    for number, argument in reversed([*enumerate(arguments)]):
        rest = (Optional((*([between] if number else []), *argument, *rest)),)
    return rest
