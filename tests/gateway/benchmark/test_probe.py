"""How a server is found out: by what it answers, and what its owner is told where that is not enough."""

import asyncio
from typing import Any

import pytest

from gateway.benchmark.command_line import parse
from gateway.benchmark.http_client import HttpClient
from gateway.benchmark.probe import NoServer, probe
from gateway.benchmark.prompt import Prompt
from tests.gateway.benchmark.fake_server import MODELS, FakeServer, Script, stream

INFO = {"model_id": "tgi-model", "router": "text-generation-router", "max_total_tokens": 100}
TGI = {"/info": INFO, "/v1/models": MODELS}
OURS = {**TGI, "/version": {"version": "1"}}
OPENAI = {"/v1/models": MODELS}


async def found(documents: dict[str, Any], *options: str, chats: bool = False, answer: Script | None = None) -> Any:
    async with FakeServer(lambda number, body: answer or stream(1), documents).running() as server:
        client = HttpClient(server.url)
        try:
            return await probe(client, parse([f"--url={server.url}", *options], {}), chats=chats)
        finally:
            client.close()


@pytest.mark.parametrize(
    ("documents", "chats", "options", "path"),
    [
        (OPENAI, False, (), "/v1/completions"),
        (OPENAI, True, (), "/v1/chat/completions"),
        (TGI, False, (), "/generate_stream"),
        (TGI, True, (), "/v1/chat/completions"),
        (OURS, False, (), "/v1/completions"),
        (OURS, False, ("--api=tgi",), "/generate_stream"),
        (OURS, False, ("--api=chat",), "/v1/chat/completions"),
        ({}, False, ("--api=openai", "--model=m"), "/v1/completions"),
    ],
)
async def test_the_route_is_that_of_the_server(
    documents: dict[str, Any], chats: bool, options: tuple[str, ...], path: str
) -> None:
    assert (await found(documents, *options, chats=chats)).path == path


async def test_a_server_that_refuses_ignore_eos_is_not_sent_it() -> None:
    dialect = await found(OPENAI, answer=Script(400, body="unknown field ignore_eos"))
    assert "ignore_eos" not in dialect.body(Prompt("hello"))
    assert dialect.body(Prompt("hello"))["model"] == "fake"
    assert (await found(OPENAI)).body(Prompt("hello"))["ignore_eos"] is True


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_that_has_chats_only_is_measured_by_them(status: int) -> None:
    async with FakeServer(
        lambda number, body: Script(status, body="no") if "prompt" in body else stream(1)
    ).running() as one:
        dialect = await probe(HttpClient(one.url), parse([f"--url={one.url}"], {}), chats=False)
        assert dialect.path == "/v1/chat/completions"
        with pytest.raises(NoServer, match=rf"has no /v1/completions, or no model 'fake' \({status} no\): add --api"):
            await probe(HttpClient(one.url), parse([f"--url={one.url}", "--api=openai"], {}), chats=False)


async def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoServer, match=r"does not answer a first request within 0\.2 s"):
        await found(OPENAI, "--timeout=0.2", answer=stream(1, wait=5.0))
    monkeypatch.setattr("gateway.benchmark.http_client.GET_SECONDS", 0.2)
    hanging = await asyncio.start_server(lambda reader, writer: asyncio.sleep(5), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
    with pytest.raises(NoServer, match=r"cannot be reached: no answer to GET /v1/models within 0\.2 s"):
        await probe(HttpClient(url), parse([f"--url={url}"], {}), chats=False)
    hanging.close()


@pytest.mark.parametrize(
    ("documents", "options", "chats", "answer", "message"),
    [
        ({}, (), False, None, "neither /v1/models nor TGI's /info: add --api"),
        ({}, ("--api=openai",), False, None, "names no model on /v1/models: add --model"),
        (TGI, ("--api=tgi",), True, None, "chats cannot be sent to /generate_stream"),
        (
            OPENAI,
            (),
            False,
            Script(307, body="", headers={"location": "https://h/x/v1/completions"}),
            "to https://h/x: give",
        ),
        (OPENAI, (), False, Script(308, body=""), "redirects /v1/completions .308. to elsewhere: give that URL"),
        (OPENAI, (), False, Script(401, body="no"), r"refuses the key \(401\): set API_KEY"),
    ],
)
async def test_what_cannot_be_measured_is_said(
    documents: dict[str, Any], options: tuple[str, ...], chats: bool, answer: Script | None, message: str
) -> None:
    with pytest.raises(NoServer, match=message):
        await found(documents, *options, chats=chats, answer=answer)
