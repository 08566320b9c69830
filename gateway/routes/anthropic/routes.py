"""Anthropic's routes."""

import time

from fastapi import APIRouter, Depends, Request, Response

from gateway.http.body import read_body
from gateway.http.openapi import answers, takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes.anthropic import messages, responses
from gateway.routes.anthropic.errors import AnthropicRoute
from gateway.routes.anthropic.schemas import CountRequest, MessagesRequest

router = APIRouter(
    prefix="/v1/messages", route_class=AnthropicRoute, default_response_class=Response, tags=["Anthropic"]
)


@router.post("", openapi_extra=takes(MessagesRequest) | answers(responses.Message, events=responses.EVENTS))
async def create(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The next message of a conversation."""
    arrival = time.perf_counter()
    return await messages.respond(request, gateway, await read_body(request, MessagesRequest), arrival)


@router.post("/count_tokens", openapi_extra=takes(CountRequest) | answers(responses.TokenCount))
async def count_tokens(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """How many input tokens a message would have."""
    return await messages.count(gateway, await read_body(request, CountRequest))
