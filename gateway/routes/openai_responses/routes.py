"""The routes below `/v1/responses`."""

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http.body import read_body
from gateway.http.encoding import json_bytes
from gateway.http.openapi import answers, takes
from gateway.request.auth import caller_of
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.lifecycle import serving
from gateway.routes.openai import validation
from gateway.routes.openai.chat_prompt import read_chat
from gateway.routes.openai.errors import OpenAIRoute
from gateway.routes.openai_responses import create, stored
from gateway.routes.openai_responses.answers import EVENTS, Deleted, InputTokens, ItemList, ResponseObject
from gateway.routes.openai_responses.item_page import page
from gateway.routes.openai_responses.schemas import CountRequest, ResponseRequest
from gateway.routes.openai_responses.translation import in_our_words

router = APIRouter(
    prefix="/v1/responses", route_class=OpenAIRoute, default_response_class=Response, tags=["OpenAI responses"]
)


@router.post("", openapi_extra=takes(ResponseRequest) | answers(ResponseObject, events=EVENTS))
async def create_response(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The model's answer to a conversation of items."""
    return await create.respond(request, gateway, await read_body(request, ResponseRequest))


@router.post("/input_tokens", openapi_extra=takes(CountRequest) | answers(InputTokens))
async def count_tokens(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The tokens of the prompt that a response would follow; nothing is generated."""
    body = await read_body(request, CountRequest)
    model, description = serving(gateway)
    with in_our_words(body):
        await validation.check_model(body.model, gateway, description)
        asked = await create.translated(body, await create.conversation(request, gateway, body))
        chat = await read_chat(gateway, model, asked)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(chat.ids)})


@router.get("/{id}", openapi_extra=answers(ResponseObject))
async def retrieve(id: str, request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """A stored response."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise RequestError.invalid("stream is not supported for a stored response: its events are not kept", "stream")
    record = await stored.find(request, gateway, id)
    return await _answer(record["response"])


@router.delete("/{id}", openapi_extra=answers(Deleted))
async def delete(id: str, request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Forget a stored response."""
    if not await gateway.responses.delete(id, caller_of(request).number):
        raise stored.not_kept(gateway, id)
    return JSONResponse({"id": id, "object": "response", "deleted": True})


@router.post("/{id}/cancel", openapi_extra=answers(ResponseObject))
async def cancel(id: str, request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Refused: only responses in the background can be cancelled, and there are none. Closing a stream ends it."""
    await stored.find(request, gateway, id)
    message = "Cannot cancel a synchronous response: only those with background true can be, which is not supported"
    raise RequestError.invalid(message, "response_id")


@router.get("/{id}/input_items", openapi_extra=answers(ItemList))
async def input_items(id: str, request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """What a stored response is the answer to, by pages."""
    record = await stored.find(request, gateway, id)
    return await _answer(page(record["input"], request.query_params))


async def _answer(value: dict[str, Any]) -> Response:
    """`value`, which may have megabytes."""
    return Response(await asyncio.to_thread(json_bytes, value), media_type="application/json")
