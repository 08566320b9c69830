"""Connections of streams and plain answers: clients that leave, wait or starve. Over raw ASGI, so that they can."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.http import sse
from tests.engine_mock import EOS
from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import serve
from tests.gateway.toys import byte_level
from tests.processes import PATIENCE, until

BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": "lo"},
    "/generate_stream": {"inputs": "lo"},
    "/v1/completions": {"prompt": "lo", "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "lo"}], "stream": True},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("after", [0, 2])
async def test_a_client_that_leaves_cancels_its_work(path: str, after: int) -> None:
    async with serve() as app:
        blocked = asyncio.Event()

        async def before(count: int) -> None:
            if count == after:
                blocked.set()
                await asyncio.Event().wait()

        pace(app, before)
        connection = Connection(app, path, BODIES[path])
        running = asyncio.create_task(connection.run())
        await blocked.wait()
        copies = app.gateway.admission.active
        assert copies == (2 if path == "/v1/completions" else 1)
        connection.leave()
        await asyncio.wait_for(running, PATIENCE)
        assert app.engine.open == 0
        assert len(app.engine.cancelled) == copies
        assert app.gateway.admission.active == 0
        assert app.gateway.metrics.registry.get_sample_value("tgi_request_failure_total", {"err": "dropped"}) == 1


async def test_a_stream_that_is_always_ready_does_not_starve_others() -> None:
    async with serve([5], max_total_tokens=50_000) as app:
        connection = Connection(app, "/generate_stream", {"inputs": "lo", "parameters": {"max_new_tokens": 1024}})
        running = asyncio.create_task(connection.run())
        turns = 0
        while not running.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 1024 / sse.EVENTS_PER_TURN


async def test_a_stream_waits_with_its_headers_for_the_first_event() -> None:
    async with serve() as app:
        release = asyncio.Event()

        async def before(count: int) -> None:
            await release.wait()

        pace(app, before)
        connection = Connection(app, "/v1/chat/completions", BODIES["/v1/chat/completions"])
        running = asyncio.create_task(connection.run())
        await until(lambda: app.engine.open == 1)
        assert connection.messages == []
        release.set()
        await asyncio.wait_for(running, PATIENCE)
        assert connection.messages[0]["status"] == 200
        assert connection.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize(
    ("path", "text_of"),
    [
        ("/generate_stream", lambda event: event["token"]["text"] * (not event["token"]["special"])),
        ("/v1/completions", lambda event: event["choices"][0]["text"]),
        ("/v1/chat/completions", lambda event: event["choices"][0]["delta"].get("content", "")),
    ],
)
async def test_an_event_is_one_line_also_to_clients_that_split_lines_as_python_does(
    path: str, text_of: Callable[[Any], str]
) -> None:
    """As httpx does, and so huggingface_hub: at U+0085, U+2028 and U+2029 too, which JSON lets stand in a string."""
    text = "lo".join(" \x0b\x0c\x1c\x85\u2028\u2029 ")
    script = [*byte_level().encode(text, add_special_tokens=False).ids, EOS]
    async with serve(script, max_total_tokens=128) as app:
        lines = (await app.post(path, {**BODIES[path], "n": 1, "max_tokens": 50, "stream": True})).text.splitlines()
        events = [json.loads(line.removeprefix("data:")) for line in lines if line not in ("", "data: [DONE]")]
        assert "".join(map(text_of, events)) == text


async def test_one_failing_choice_ends_all_choices() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 3
        response = await app.post("/v1/completions", prompt="lo", n=4)
        assert response.status_code == 503
        assert app.engine.open == 0
        assert app.gateway.admission.active == 0


async def test_requests_are_counted_once_by_how_they_ended() -> None:
    async with serve() as app:
        await app.post("/generate", inputs="lo")
        await app.post("/v1/chat/completions", BODIES["/v1/chat/completions"])
        await app.post("/generate", inputs="", parameters={})
        value = app.gateway.metrics.registry.get_sample_value
        assert value("tgi_request_count_total") == 3
        assert value("tgi_request_success_total") == 2
        assert value("tgi_request_failure_total", {"err": "validation"}) == 1
