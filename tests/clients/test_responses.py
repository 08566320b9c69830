"""OpenAI's SDK and LangChain over `/v1/responses`: against a served model, and against what a scripted one answers."""

from typing import Any

import pytest

from tests.clients.environments import run_script
from tests.clients.test_clients import GOLDEN, MODEL, TEXT
from tests.gateway.routes.openai.test_reasoning import THOUGHT
from tests.gateway.routes.openai.tool_chats import PARIS
from tests.gateway.routes.openai_responses.scripted import PATH, WEATHER, serving
from tests.servers import Server

pytestmark = pytest.mark.slow

TOKENS = len(GOLDEN["greedy_ids"])
BEGIN = ["response.created", "response.in_progress", "response.output_item.added"]
OF_TEXT = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
OF_CALL = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
LOST = ["BadRequestError", 400, "previous_response_id", "previous_response_not_found"]


@pytest.fixture
def job(smollm2: Server) -> dict[str, Any]:
    return {"url": smollm2.url, "user": GOLDEN["user"], "model": MODEL}


def kinds(*own: str) -> list[str]:
    return [*BEGIN, *(f"response.{each}" for each in own), "response.completed"]


def test_openais_sdk(job: dict[str, Any]) -> None:
    seen = run_script("modern", "openai_responses", **job)
    called, stored = seen.pop("called"), seen.pop("stored")
    assert seen == {
        "text": TEXT,
        "status": ["completed", "incomplete", "max_output_tokens"],
        "usage": [TOKENS, 3],
        "logprobs": TOKENS - 1,  # the end is no text
        "stream": {"kinds": kinds(*OF_TEXT), "deltas": TEXT, "text": TEXT},
        "parsed": ["Person", "Person"],
        "refused": {
            "tools": ["BadRequestError", 400, "tools[0].type", None],
            "background": ["BadRequestError", 400, "background", None],
            "temperature": ["BadRequestError", 400, "temperature", None],
            "model": ["NotFoundError", 404, "model", "model_not_found"],
            "long": ["BadRequestError", 400, "input", "context_length_exceeded"],
        },
        "async": [TEXT] * 4,
    }
    assert called.pop("same"), "a chain and all of its items are one prompt"
    assert called == {"names": ["add"] * 2, "arguments": ["Add"] * 2, "deltas": True, "kinds": kinds(*OF_CALL)}
    assert stored == {
        "shown": True,
        "items": [GOLDEN["user"], TEXT, "And then?"],
        "longer": True,
        "counted": True,
        "cancel": ["BadRequestError", 400, "response_id", None],
        "deleted": ["NotFoundError", 404, None, None],
        "lost": LOST,
    }


def test_langchain(job: dict[str, Any]) -> None:
    assert run_script("modern", "langchain_responses", **job) == {
        "text": TEXT,
        "stream": TEXT,
        "usage": TOKENS,
        "call": ["Add", "Add"],
        "after the result": True,
        "chained": True,
        "structured": "Add",
    }


async def test_openais_sdk_reads_reasoning_and_raises_where_a_stream_breaks() -> None:
    body = {"input": "lo", "tools": [WEATHER], "include": ["reasoning.encrypted_content"]}
    async with serving(THOUGHT + PARIS) as app:
        whole = (await app.post(PATH, body)).text
        stream = (await app.post(PATH, {**body, "stream": True})).text
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 12
        broken = (await app.post(PATH, {**body, "stream": True})).text
    seen = run_script("modern", "openai_replay", whole=whole, stream=stream, broken=broken)
    items = [["reasoning", "he he"], ["message", "hello world"], ["function_call", '{"city": "Paris"}']]
    assert seen["whole"] == seen["stream"]["items"] == items
    assert seen["stream"]["deltas"] == "".join(text for _, text in items)
    assert "response.failed" in seen["broken"]["kinds"] and "items" not in seen["broken"]
    assert seen["broken"]["error"] == ["the engine stopped", "engine_unavailable", "server_error"]
