"""A page of a stored response's input, as `/v1/responses/{id}/input_items` lists it."""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams

from gateway.errors import RequestError
from gateway.routes.openai_responses.input_items import Item

MOST, USUAL = 100, 20  # items of a page
ORDERS = ("asc", "desc")


def page(items: Sequence[Item], query: QueryParams) -> dict[str, Any]:
    """The page that `limit`, `order` and `after` ask for; by default the newest items, the last first. Raises
    RequestError.
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(USUAL))
    if order not in ORDERS:
        raise RequestError.invalid("order must be 'asc' or 'desc'", "order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST):
        raise RequestError.invalid(f"limit must be a whole number in 1..{MOST}", "limit")
    listed = list(items) if order == "asc" else list(reversed(items))
    begin = _behind(listed, query.get("after"))
    data = listed[begin : begin + int(limit)]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": begin + int(limit) < len(listed)}


def _behind(items: Sequence[Item], after: str | None) -> int:
    """Where the item of the id `after` has been passed."""
    if after is None:
        return 0
    for number, item in enumerate(items):
        if item["id"] == after:
            return number + 1
    raise RequestError.invalid("after is the id of no item of this response", "after")
