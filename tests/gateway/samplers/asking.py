"""One request with further sampling fields, by every route that takes them, and what the engine is sent for it."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp

Ask = Callable[[ServedApp, dict[str, Any]], Awaitable[httpx.Response]]
SEED = 5


async def completion(app: ServedApp, fields: dict[str, Any]) -> httpx.Response:
    return await app.post("/v1/completions", {"prompt": "lo", "seed": SEED} | fields)


async def chat(app: ServedApp, fields: dict[str, Any]) -> httpx.Response:
    messages = [{"role": "user", "content": "lo"}]
    return await app.post("/v1/chat/completions", {"messages": messages, "seed": SEED} | fields)


async def response(app: ServedApp, fields: dict[str, Any]) -> httpx.Response:
    return await app.post("/v1/responses", {"input": "lo", "seed": SEED, "store": False} | fields)


async def tgi(app: ServedApp, fields: dict[str, Any]) -> httpx.Response:
    return await app.post("/generate", {"inputs": "lo", "parameters": {"seed": SEED} | fields})


async def kserve(app: ServedApp, fields: dict[str, Any]) -> httpx.Response:
    body = {"text_input": "lo", "sampling_parameters": json.dumps({"seed": SEED} | fields)}
    return await app.post("/v2/models/mock/model/generate", body)


V1: dict[str, Ask] = {"completions": completion, "chat": chat, "responses": response, "kserve": kserve}
ROUTES: dict[str, Ask] = {**V1, "tgi": tgi}


async def sent(app: ServedApp, ask: Ask, fields: dict[str, Any]) -> pb.Sampling:
    """The sampling parameters of the one request to the engine."""
    before = len(app.engine.requests)
    answer = await ask(app, fields)
    assert answer.status_code == 200, answer.text
    [request] = app.engine.requests[before:]
    return request.sampling


async def refused(app: ServedApp, ask: Ask, fields: dict[str, Any]) -> str:
    """The message of the refusal, without a dialect's marks around names and what it says first."""
    answer = await ask(app, fields)
    assert answer.status_code == (422 if ask is tgi else 400), answer.text
    assert app.engine.requests == []
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    return message.removeprefix("Input validation error: ").replace("`", "")
