"""OpenAI's routes. Everything specific to one of them is in the module of its name."""

import time

from fastapi import APIRouter, Depends, Request, Response

from gateway.body import read_body, takes
from gateway.errors import Kind, RequestError
from gateway.exchange import serving
from gateway.openai import chat, completions
from gateway.openai.errors import OpenAIRoute, error_event
from gateway.openai.identity import request_id
from gateway.openai.schemas import ChatRequest, CompletionRequest
from gateway.sse import EventStream, while_connected
from gateway.state import Gateway, gateway_of
from gateway.wire import json_bytes
from jaxengine.rpc import engine_pb2 as pb

STARTED = int(time.time())

router = APIRouter(prefix="/v1", route_class=OpenAIRoute, tags=["OpenAI"])
public = APIRouter(prefix="/v1", route_class=OpenAIRoute, tags=["OpenAI"])  # no key needed, as in TGI


@router.post("/chat/completions", openapi_extra=takes(ChatRequest))
async def chat_completions(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The next message of a chat."""
    arrival = time.perf_counter()
    body = await read_body(request, ChatRequest)
    if body.stream:
        events = chat.stream(request, gateway, body, arrival)
        return await EventStream.begin(request, events, error_event, {"x-request-id": request_id(request)})
    return await while_connected(request.receive, chat.answer(request, gateway, body, arrival))


@router.post("/completions", openapi_extra=takes(CompletionRequest))
async def text_completions(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text that follows a prompt."""
    arrival = time.perf_counter()
    body = await read_body(request, CompletionRequest)
    if body.stream:
        events = completions.stream(request, gateway, body, arrival)
        return await EventStream.begin(request, events, error_event, {"x-request-id": request_id(request)})
    return await while_connected(request.receive, completions.answer(request, gateway, body, arrival))


@public.get("/models")
async def models(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The one model this server serves."""
    _, description = serving(gateway)
    content = json_bytes({"object": "list", "data": [_card(description)]})
    return Response(content, media_type="application/json")


@public.get("/models/{name:path}")
async def model(name: str, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The model of that name."""
    _, description = serving(gateway)
    if name != description.model_id:
        raise RequestError(Kind.MODEL_NOT_FOUND, "the model does not exist; see /v1/models", param="model")
    return Response(json_bytes(_card(description)), media_type="application/json")


def _card(description: pb.Description) -> dict[str, object]:
    return {
        "id": description.model_id,
        "object": "model",
        "created": STARTED,
        "owned_by": description.model_id,
        "max_model_len": description.max_total_tokens,
    }
