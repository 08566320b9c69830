"""Requests to KoboldAI's routes, and the events of their streams."""

import json
from typing import Any

import httpx

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp
from tests.gateway.toys import byte_level

GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"
CHECK, ABORT = "/api/extra/generate/check", "/api/extra/abort"


def ids_of(text: str) -> list[int]:
    """Without the token that stands in front of every text."""
    return list(byte_level().encode(text, add_special_tokens=False).ids)


async def generated(app: ServedApp, **fields: Any) -> dict[str, Any]:
    """The only result."""
    response = await app.post(GENERATE, {"prompt": "lo"} | fields)
    assert response.status_code == 200, response.text
    [result] = response.json()["results"]
    found: dict[str, Any] = result
    return found


async def sent(app: ServedApp, **fields: Any) -> pb.Generate:
    """What the engine is sent."""
    await generated(app, **fields)
    return app.engine.requests[-1]


async def refused(app: ServedApp, path: str = GENERATE, **fields: Any) -> str:
    """The message of a 400."""
    response = await app.post(path, {"prompt": "lo"} | fields)
    assert response.status_code == 400, response.text
    detail = response.json()["detail"]
    assert detail.keys() == {"msg", "type"} and detail["type"] == "bad_input"
    return str(detail["msg"])


def events(response: httpx.Response) -> list[Any]:
    """The JSON of every event; each is a `message` but one that tells of a failure."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_in(response.text)


def events_in(text: str) -> list[Any]:
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "a stream ends with an empty line"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {'error' if 'detail' in found[-1] else 'message'}"
    return found
