"""SillyTavern's calls to a server that it takes for KoboldAI, in their order."""

import asyncio
from typing import Any

from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import HELLO, serve
from tests.gateway.routes.kobold.asking import ABORT, GENERATE, STREAM, events_in

BODY: dict[str, Any] = {
    "prompt": "lo",
    "use_story": False,
    "use_memory": False,
    "use_authors_note": False,
    "use_world_info": False,
    "max_context_length": 48,
    "max_length": 16,
    "rep_pen": 1.1,
    "rep_pen_range": 600,
    "rep_pen_slope": 0.9,
    "temperature": 1,
    "tfs": 1,
    "top_a": 0,
    "top_k": 0,
    "top_p": 0.95,
    "min_p": 0,
    "typical": 1,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "singleline": False,
    "use_default_badwordsids": False,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5,
    "grammar": "",
    "stop_sequence": ["\nYou:", "\nBot:", "\n***", "\nNarrator:", "\nAnn:", "\nBob:"],
}
FIRST_DEFAULTS = {
    **BODY,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "top_a": 1,
    "top_p": 1,
    "sampler_order": [0, 1, 2, 3, 4, 5, 6],
}


async def test_it_looks_at_versions_and_the_model_and_takes_it_for_koboldcpp() -> None:
    async with serve() as app:
        united = (await app.http.get("/api/v1/info/version")).json()["result"]
        assert tuple(map(int, united.split("."))) >= (1, 2, 4)
        assert (await app.http.get("/api/extra/version")).json()["result"] == "KoboldCpp"
        assert (await app.http.get("/api/v1/model")).json()["result"] not in ("", "ReadOnly")


async def test_its_request_is_answered_with_its_first_settings_too() -> None:
    async with serve() as app:
        for body in (BODY, FIRST_DEFAULTS):
            assert (await app.post(GENERATE, body)).json()["results"][0]["text"] == "hello world"
        assert (await app.post("/api/extra/tokencount", prompt="hello")).json()["value"] == 3


async def test_while_the_server_is_busy_it_comes_again() -> None:
    async with serve(HELLO * 4) as app:
        app.engine.ready = False
        statuses = []
        for attempt in range(50):
            app.engine.ready = attempt == 2
            response = await app.post(GENERATE, BODY)
            statuses.append(response.status_code)
            if response.status_code != 503:
                break
        assert statuses == [503, 503, 200]


async def test_closing_its_stream_ends_that_and_the_abort_that_it_then_sends_nothing_more() -> None:
    async with serve(HELLO * 8) as app:
        came, go = asyncio.Semaphore(0), asyncio.Event()

        async def wait(count: int) -> None:
            if count == 2:
                came.release()
                await go.wait()

        pace(app, wait)
        mine, neighbour = Connection(app, STREAM, BODY), Connection(app, STREAM, {**BODY, "genkey": "KCPP1"})
        tasks = [asyncio.create_task(each.run()) for each in (mine, neighbour)]
        for _ in tasks:
            await came.acquire()
        assert [each["token"] for each in events_in(mine.text)] == ["hel", "lo"]
        mine.leave()
        aborted = await app.http.request("POST", ABORT)  # no body, no type of one, no genkey
        assert (aborted.status_code, aborted.json()) == (200, {"success": "true", "done": "true"})
        await tasks[0]
        go.set()
        await tasks[1]
        assert len(app.engine.cancelled) == 1
        assert "".join(each["token"] for each in events_in(neighbour.text)) == "hello world"
