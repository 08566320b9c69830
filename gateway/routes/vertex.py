"""Vertex AI's prediction route: several of TGI's requests or chats in one call, answered by their texts."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Discriminator, Field, Tag
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http import openapi
from gateway.http.body import StrictModel, read_body
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle
from gateway.routes.openai import chat
from gateway.routes.openai.chat_prompt import with_written_images
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.tgi import answers, generate
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.tgi.responses import Predictions
from gateway.routes.tgi.schemas import GenerateRequest

MAX_INSTANCES = 1024

router = APIRouter(route_class=TgiRoute, default_response_class=Response, tags=["Text Generation Inference"])


def _kind(instance: Any) -> str:
    return "a chat" if isinstance(instance, dict) and "messages" in instance else "a text"


Instance = Annotated[
    Annotated[GenerateRequest, Tag("a text")] | Annotated[ChatRequest, Tag("a chat")], Discriminator(_kind)
]


class VertexRequest(StrictModel):
    instances: Annotated[list[Instance], Field(min_length=1, max_length=MAX_INSTANCES)]


@router.post("/vertex", openapi_extra=openapi.takes(VertexRequest) | openapi.answers(Predictions))
async def vertex(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """One text per instance. All instances run at once; if one fails, the call does."""
    arrival = time.perf_counter()
    body = await read_body(request, VertexRequest)
    most = gateway.options.max_concurrent_requests
    if len(body.instances) > most:
        raise RequestError.invalid(f"`instances` takes at most {most}. Given: {len(body.instances)}", "instances")
    info = RequestInfo.of(request, arrival)
    predictions = _all([_predict(gateway, info, each) for each in body.instances])
    fields = {"predictions": await while_connected(request.receive, predictions)}
    return JSONResponse(fields)


def at(path: str) -> APIRouter:
    """The route at another path: the one that Vertex AI assigns."""
    assigned = APIRouter(route_class=TgiRoute, include_in_schema=False)
    assigned.add_api_route(path, vertex, methods=["POST"])
    return assigned


async def _predict(gateway: Gateway, info: RequestInfo, instance: Instance) -> str:
    with RequestLifecycle(gateway, info) as lifecycle:
        if isinstance(instance, GenerateRequest):
            outcomes = await generate.run(gateway, lifecycle, instance)
            return str(answers.generation(outcomes, "")["generated_text"])
        [begun], _ = await chat.begin_chats(gateway, [with_written_images(gateway, instance)], lifecycle)
        with begun.grammar_fields.named():
            [deltas, *_] = await lifecycle.collect(begun.outputs)
        return await in_thread(partial(begun.text, deltas), when=begun.takes_long)


async def _all(works: list[Coroutine[Any, Any, str]]) -> list[str]:
    """The results in order; the first failure ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
