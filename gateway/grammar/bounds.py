"""The bounds of numbers in a schema, as llguidance 1.9.1 keeps them.

Bounds beyond 2^53, where numbers in JSON are no longer exact, are drawn in. So is a whole number that is excluded where
the other bound comes before the next one: of numbers above 0 and up to 0.5 llguidance would allow `0`. What lies within
`NUDGE` of it is then not written.
"""

from decimal import Decimal
from typing import Any

EXACT = 2**53  # up to here every whole number is a double
MAX_MULTIPLE = 10_000  # of the last decimal place
NUDGE = 1e-9  # or that part of the number
BELOW, ABOVE = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def draw_in(node: dict[str, Any], *, fractions: bool) -> None:
    """Rewrite the bounds of `node`. Raises ValueError.

    fractions: whether numbers may have them.
    """
    for names, sign in ((ABOVE, 1), (BELOW, -1)):
        for name in names:
            bound = node.get(name, 0)
            if sign * bound > EXACT:
                node[name] = sign * EXACT
            elif sign * bound < -EXACT:
                raise ValueError(f"{name} beyond 2^53 cannot be enforced")
    if fractions:
        _nudge(node, BELOW, ABOVE, 1)
        _nudge(node, ABOVE, BELOW, -1)
    _check_multiple(node.get("multipleOf", 1))


def _nudge(node: dict[str, Any], near: tuple[str, str], far: tuple[str, str], sign: int) -> None:
    """Where the bound of `near` excludes a whole number, and that of `far` lies before the next in direction `sign`."""
    name = near[0] if node.get(near[1]) is True else near[1]  # draft 4 says true beside `minimum`
    excluded, others = node.get(name), [node[each] for each in far if not isinstance(node.get(each, True), bool)]
    if excluded is None or isinstance(excluded, bool) or excluded != int(excluded):
        return
    if any(0 < sign * (each - excluded) < 1 for each in others):
        node[name] = excluded + sign * NUDGE * max(1, abs(excluded))


def _check_multiple(multiple: float) -> None:
    _, digits, exponent = Decimal(repr(multiple)).as_tuple()
    places = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
    if places > MAX_MULTIPLE:
        shown = places if places < EXACT else "more than 2^53"
        raise ValueError(f"multipleOf is {shown} times its last decimal place, at most {MAX_MULTIPLE} are allowed")
