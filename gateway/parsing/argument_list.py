"""Arguments that stand one after another with something between them, as grammars write them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.parsing.calls import Arguments, Either, Optional, Part, UpTo

WriteArgument = Callable[[str, Any], Sequence[Part]]  # of a name and the schema of its value


def any_of(arguments: Arguments, write: WriteArgument, between: str) -> list[Part]:
    """The arguments of a tool that may be called with any."""
    each = Either(tuple(tuple(write(name, {})) for name in arguments.names))
    return [UpTo(len(arguments.names), (each,), between)]


def in_order(declared: Mapping[str, Any], write: WriteArgument, between: str) -> list[Part]:
    """Those that must be there come first. Without any, one may be there if those before it are."""
    properties = declared.get("properties", {})
    required = [key for key in properties if key in declared.get("required", ())]
    optional = [tuple(write(key, properties[key])) for key in properties if key not in required]
    parts: list[Part] = []
    for key in required:
        parts += [*([between] if parts else []), *write(key, properties[key])]
    if parts:
        return [*parts, *(Optional((between, *each)) for each in optional)]
    return list(_nested(optional, between))


def _nested(arguments: Sequence[tuple[Part, ...]], between: str) -> tuple[Part, ...]:
    """Each may be left out together with all that follow it."""
    rest: tuple[Part, ...] = ()
    for number, argument in reversed([*enumerate(arguments)]):
        rest = (Optional((*([between] if number else []), *argument, *rest)),)
    return rest
