"""`/dashboard/feed` over HTTP: its key, its events, its ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.observability.feed import feed as feed_module
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.listening import listening
from tests.processes import NO_CERTIFICATES, PATIENCE, until

PATH = "/dashboard/feed"


@asynccontextmanager
async def watched(app: ServedApp, **headers: str) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[Any]]]:
    """The feed over a socket, and the JSON of its events."""

    async def events(answer: httpx.Response) -> AsyncIterator[Any]:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    async with (
        listening(app.asgi) as server,
        httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http,
        http.stream("GET", server.url + PATH, headers=headers) as answer,
    ):
        yield answer, events(answer)
        await answer.aclose()


async def test_the_feed_asks_for_the_key_and_refuses_in_the_words_of_its_neighbours() -> None:
    async with serve(api_key="hush") as app:
        answer = await app.http.get(PATH)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "the API key is missing or wrong" in answer.json()["error"]
        assert (await app.http.get(f"{PATH}?key=hush&api_key=hush")).status_code == 401  # never in a URL
        async with watched(app, authorization="Bearer hush") as (answer, events):
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-cache"
            assert (await anext(events))["rows"] == []


async def test_an_answer_that_is_given_shows_in_the_next_sample() -> None:
    async with serve() as app, watched(app) as (_, events):
        await anext(events)
        assert (await app.post("/generate", inputs="lo")).status_code == 200
        app.gateway.feed.sample()
        sample = await anext(events)
        assert (sample["requests"], sample["answered"]) == (1, 1)
        assert sample["first_token_seconds"] is None  # there is no sample before it, so no window


async def test_a_client_that_leaves_watches_no_more() -> None:
    async with serve() as app:
        async with watched(app) as (_, events):
            await anext(events)
            assert app.gateway.feed.watchers == 1
        await until(lambda: app.gateway.feed.watchers == 0)


async def test_the_stream_ends_when_the_server_drains_and_later_ones_are_refused() -> None:
    async with serve() as app:
        async with watched(app) as (_, events):
            await anext(events)
            app.gateway.feed.close()
            assert [each async for each in events] == []
        refused = await app.http.get(PATH)
        assert (refused.status_code, refused.json()["error"]) == (503, "the server is shutting down")


async def test_one_viewer_too_many_is_a_503_that_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WATCHERS", 1)
    async with serve() as app, watched(app) as (_, events):
        await anext(events)
        refused = await app.http.get(PATH)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")


async def test_viewers_count_as_requests_at_work() -> None:
    async with serve() as app:
        full = create_app(app.gateway, max_requests=1)
        async with watched(ServedApp(full, app.gateway, app.engine, app.http)) as (_, events):
            await anext(events)
            transport = httpx.ASGITransport(full)
            async with httpx.AsyncClient(transport=transport, base_url="http://full") as http:
                assert (await http.get("/info")).status_code == 503
                assert (await http.get("/health")).status_code == 200


async def test_head_is_answered_without_waiting_for_an_end() -> None:
    async with serve() as app:
        answer = await asyncio.wait_for(app.http.head(PATH), PATIENCE)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert app.gateway.feed.watchers == 0


async def test_disabled_pages_have_no_feed() -> None:
    async with serve(disable_ui=True) as app:
        assert (await app.http.get(PATH)).status_code == 404
