"""`genkey`: what another request sees of a generation, and whose it may end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.images.picture import ReadPrompt
from gateway.routes.kobold import generate
from tests.gateway.asgi_client import pace
from tests.gateway.fixtures import HELLO, ServedApp, serve
from tests.gateway.routes.kobold.asking import ABORT, CHECK, GENERATE, STREAM, events

KEYS = "first-key\nsecond-key"
DONE = {"success": "true", "done": "true"}
NOT_FOUND = {"success": "false", "done": "false"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def held(app: ServedApp, *asked: tuple[str, str, dict[str, Any]]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Generations by key, path and fields, each with "hello" as its text so far; they go on once the block ends."""
    waiting, go = asyncio.Semaphore(0), asyncio.Event()

    async def wait(count: int) -> None:
        if count == 2:
            waiting.release()
            await go.wait()

    pace(app, wait)
    tasks = []
    for key, path, fields in asked:
        body = {"prompt": "lo", "max_length": 20, **fields}
        tasks.append(asyncio.create_task(app.http.post(path, json=body, headers=bearer(key))))
        await waiting.acquire()
    try:
        yield tasks
    finally:
        go.set()
        await asyncio.gather(*tasks)


async def post(app: ServedApp, path: str, key: str = "", **body: Any) -> Any:
    return (await app.http.post(path, json=body, headers=bearer(key))).json()


def texts(text: str) -> dict[str, Any]:
    return {"results": [{"text": text}]}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_the_text_so_far_is_told_by_its_name_alone(path: str) -> None:
    async with serve() as app:
        async with held(app, ("", path, {"genkey": "KCPP1"}), ("", path, {})):
            assert await post(app, CHECK, genkey="KCPP1") == texts("hello")
            for body in ({"genkey": "KCPP2"}, {"genkey": ""}, {"genkey": None}, {}):
                assert await post(app, CHECK, **body) == texts("")
            assert (await app.http.get(CHECK)).json() == (await app.http.post(CHECK)).json() == texts("")
        assert await post(app, CHECK, genkey="KCPP1") == texts("")


async def test_an_aborted_generation_answers_what_it_has() -> None:
    async with serve() as app:
        async with held(app, ("", GENERATE, {"genkey": "a"}), ("", STREAM, {"genkey": "a"})) as tasks:
            assert await post(app, ABORT, genkey="a") == DONE
            whole, stream = [await task for task in tasks]
            assert app.engine.open == 0 and len(app.engine.cancelled) == 2
        assert whole.json()["results"] == [
            {"text": "hello", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 2}
        ]
        assert [each["token"] for each in events(stream)] == ["hel", "lo", ""]
        assert events(stream)[-1]["finish_reason"] == "stop"
        assert app.gateway.admission.active == 0
        assert await post(app, ABORT, genkey="a") == NOT_FOUND


async def test_a_generation_is_aborted_while_its_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, read = asyncio.Event(), asyncio.Event()

    async def slowly(*_: Any) -> ReadPrompt:
        reading.set()
        await read.wait()
        return ReadPrompt([1, 2])

    monkeypatch.setattr(generate, "read_prompt", slowly)
    async with serve() as app:
        for path in (GENERATE, STREAM):
            reading.clear()
            read.clear()
            task = asyncio.create_task(app.post(path, prompt="lo", genkey="a"))
            await reading.wait()
            assert await post(app, ABORT, genkey="a") == DONE
            read.set()
            assert (await task).status_code == 200
            assert app.engine.requests == []
        assert await post(app, ABORT, genkey="a") == NOT_FOUND


async def test_a_generation_is_aborted_before_its_first_token() -> None:
    async with serve() as app:
        begun = asyncio.Event()

        async def wait(count: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        pace(app, wait)
        for path in (GENERATE, STREAM):
            begun.clear()
            task = asyncio.create_task(app.post(path, prompt="lo", genkey="a"))
            await begun.wait()
            assert await post(app, ABORT, genkey="a") == DONE
            response = await task
            assert response.status_code == 200
            if path == STREAM:
                assert events(response) == [{"token": "", "finish_reason": "stop"}]
            else:
                assert response.json()["results"][0] | {"prompt_tokens": 2} == {
                    "text": "", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 0,
                }  # fmt: skip


@pytest.mark.parametrize(
    "content", [None, b"", b"null", b"{}", b'{"genkey": ""}', b'{"genkey": null}', b'{"other": 1}']
)
async def test_without_a_name_abort_succeeds_and_ends_nothing(content: bytes | None) -> None:
    async with serve() as app:
        async with held(app, ("", GENERATE, {"genkey": "a"}), ("", GENERATE, {})) as tasks:
            response = await app.http.post(ABORT, content=content)  # without a content type
            assert (response.status_code, response.json()) == (200, DONE)
        assert [(await task).json()["results"][0]["text"] for task in tasks] == ["hello world"] * 2
        assert not app.engine.cancelled


async def test_a_name_belongs_to_the_key_it_was_given_with() -> None:
    async with serve(api_key=KEYS) as app:
        mine, theirs = ("first-key", GENERATE, {"genkey": "a"}), ("second-key", GENERATE, {"genkey": "a"})
        async with held(app, mine, theirs) as tasks:
            assert await post(app, ABORT, "second-key", genkey="a") == DONE
            assert (await tasks[1]).json()["results"][0]["text"] == "hello"
            assert await post(app, CHECK, "second-key", genkey="a") == texts("")
            assert await post(app, ABORT, "second-key", genkey="a") == NOT_FOUND
            assert await post(app, CHECK, "first-key", genkey="a") == texts("hello")
        assert tasks[0].result().json()["results"][0]["text"] == "hello world"


@pytest.mark.parametrize("content", [b"not json", b"[]", b'{"genkey": 5}', b'{"genkey": "' + b"a" * 200 + b'"}'])
async def test_a_body_that_is_wrong_is_refused(content: bytes) -> None:
    async with serve() as app:
        for path in (ABORT, CHECK):
            response: httpx.Response = await app.raw(path, content)
            assert (response.status_code, response.json()["detail"]["type"]) == (400, "bad_input")


async def test_names_are_forgotten_with_their_generations() -> None:
    async with serve(HELLO) as app:
        await app.post(GENERATE, prompt="lo", genkey="a")
        assert not app.gateway.named_generations._running
