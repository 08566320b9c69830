"""Responses that are stored: looked up for their caller, with the refusal of those that are not there.

A record holds the response and its whole input, the conversation that it went on from included. So each can be gone on
from by itself, whatever was deleted or forgotten before it.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from gateway.errors import Kind, RequestError
from gateway.request.auth import caller_of
from gateway.request.gateway_state import Gateway
from gateway.routes.openai_responses.input_items import InputModel, Item, ReferenceItem
from gateway.routes.openai_responses.response_object import Response

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")  # what a refusal repeats


async def keep(request: Request, gateway: Gateway, response: Response, conversation: Sequence[Item]) -> bool:
    """Store `response`, which is the answer to `conversation`; whether that could be done."""
    record = {"response": response, "input": conversation}
    ids = dict.fromkeys(item["id"] for item in (*conversation, *response["output"]))
    return await gateway.responses.put(response["id"], caller_of(request).number, record, ids)


async def find(request: Request, gateway: Gateway, id: str) -> dict[str, Any]:
    """The record of the response. Raises RequestError."""
    record = await gateway.responses.get(id, caller_of(request).number)
    if record is None:
        raise not_kept(gateway, id)
    return record


async def before(request: Request, gateway: Gateway, id: str) -> list[Item]:
    """The conversation up to the end of the response that the next one goes on from. Raises RequestError."""
    record = await gateway.responses.get(id, caller_of(request).number)
    if record is None:
        message = f"Previous response {_named(id)} not found{_why(gateway)}"
        raise RequestError(Kind.PREVIOUS_NOT_KEPT, message, param="previous_response_id")
    return [*record["input"], *record["response"]["output"]]


async def resolved(request: Request, gateway: Gateway, items: Sequence[Any]) -> list[Item]:
    """`items` of a body, each reference replaced by the item that it names. Raises RequestError."""
    told: list[Item] = []
    for number, item in enumerate(items):
        assert isinstance(item, InputModel)
        told.append(
            await _referred(request, gateway, item.id, number) if isinstance(item, ReferenceItem) else item.told()
        )
    return told


async def _referred(request: Request, gateway: Gateway, id: str, number: int) -> Item:
    record = await gateway.responses.get_by_item(id, caller_of(request).number)
    for item in (*record["input"], *record["response"]["output"]) if record is not None else ():
        if item["id"] == id:
            found: Item = item
            return found
    raise RequestError(Kind.NOT_KEPT, f"Item {_named(id)} not found{_why(gateway)}", param=f"input[{number}].id")


def not_kept(gateway: Gateway, id: str) -> RequestError:
    return RequestError(Kind.NOT_KEPT, f"Response {_named(id)} not found{_why(gateway)}")


def _named(id: str) -> str:
    return f"with id '{id}'" if _ID.fullmatch(id) else "of that id"


def _why(gateway: Gateway) -> str:
    store = gateway.responses
    if not store.most:
        return ": this server keeps no responses (--max-stored-responses 0)"
    kept = f"the last {store.most} responses, at most {store.most_bytes >> 20} MiB of them, unless they say store false"
    return f": this server keeps {kept}, and forgets them when it restarts"
