"""Adapters of a whole server: named at its start or loaded while it runs, over HTTP processes and engine restarts."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine_mock import continuation
from tests.gateway.processes.test_launcher import STEP, prompt_ids
from tests.gateway.processes.test_replicas import ask_for, states, wait_until
from tests.gateway.toys import write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, ROOT, Launcher, running_launcher
from tests.server.streams import stream

pytestmark = pytest.mark.slow

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SEVERAL = 24  # connections: the chance that all reach one of two processes is 1 in 8 million
RUNTIME = "--allow-runtime-lora-updating"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def post(server: Launcher, path: str, **body: Any) -> httpx.Response:
    """Over a connection of its own, which any of the server's processes may get."""
    return httpx.post(server.url + path, json=body, timeout=PATIENCE, **NO_CERTIFICATES)


def answered(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Its answer once the HTTP process that gets it sees an engine that takes requests: one sees it before another."""
    deadline = time.monotonic() + PATIENCE
    while (answer := ask()).status_code == 503:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)
    return answer


def ids(server: Launcher, adapter: str) -> list[int]:
    parameters = {"max_new_tokens": 9, "adapter_id": adapter, "details": True}
    answer = answered(lambda: post(server, "/generate", inputs="hello", parameters=parameters))
    assert answer.status_code == 200, answer.text
    return [token["id"] for token in answer.json()["details"]["tokens"]]


def adapters(server: Launcher) -> dict[str, str]:
    answer = answered(lambda: httpx.get(server.url + "/v1/models", timeout=PATIENCE))
    assert answer.status_code == 200, answer.text
    return {card["id"]: card["root"] for card in answer.json()["data"] if card["parent"]}


def test_adapters_named_at_start_are_served_and_a_local_one_by_its_absolute_path(model: Path) -> None:
    local = model / "local"
    local.mkdir()
    (local / "adapter_config.json").write_text("{}")
    options = (
        f"--lora-adapters=one=org/one,two={os.path.relpath(local, ROOT)}",
        '--lora-modules={"name":"3","path":"org/3"}',
    )
    with running_launcher(model, *options) as server:
        server.wait_for(200)
        known = adapters(server)
        assert (known["one"], known["3"], os.path.isabs(known["two"])) == ("org/one", "org/3", True)
        assert Path(known["two"]).samefile(local)
        for name, path in {"": "", **known}.items():
            assert ids(server, name) == continuation(prompt_ids("hello"), 9, path)
        assert post(server, LOAD, lora_name="new", lora_path="org/new").status_code == 404


async def test_a_restarted_engine_serves_what_was_loaded_and_not_what_was_unloaded(model: Path) -> None:
    with running_launcher(model, "--lora-adapters=one=org/one,two=org/two", RUNTIME) as server:
        server.wait_for(200)
        assert post(server, LOAD, lora_name="new", lora_path="org/new").status_code == 200
        assert post(server, LOAD, lora_name="one", lora_path="org/better", load_inplace=True).status_code == 200
        assert post(server, UNLOAD, lora_name="two").status_code == 200
        known = adapters(server)
        assert known == {"one": "org/better", "new": "org/new"}
        for _ in range(2):
            killed = server.engine_pid()
            os.kill(killed, signal.SIGKILL)
            server.wait_for(503)
            server.wait_for(200)
            assert server.engine_pid() != killed
            assert adapters(server) == known
            assert ids(server, "one") == continuation(prompt_ids("hello"), 9, "org/better")
            assert ids(server, "new") == continuation(prompt_ids("hello"), 9, "org/new")
            assert post(server, "/v1/completions", prompt="lo", model="two").status_code == 404
    log = server.log.read_text()
    assert "adapter 'new' is served from 'org/new', rank 8" in log and "adapter 'two' is served no more" in log


@pytest.mark.parametrize("workers", [1, 2])
async def test_all_replicas_serve_what_is_loaded_and_so_does_one_that_was_away(model: Path, workers: int) -> None:
    flags = ("--replicas=2", "--admin-port=0", f"--api-workers={workers}", "--lora-adapters=one=org/one,two=org/two")
    with running_launcher(model, *flags, RUNTIME) as server:
        server.wait_for(200)
        wait_until(lambda: states(server) == ["ready", "ready"])
        assert post(server, LOAD, lora_name="new", lora_path="org/new").status_code == 200
        assert post(server, LOAD, lora_name="bad", lora_path="/nowhere").status_code == 404
        server.hold.touch()  # no engine starts
        os.kill(server.engine_pid(0), signal.SIGKILL)
        wait_until(lambda: states(server)[0] != "ready")
        server.hold.unlink()
        assert post(server, LOAD, lora_name="one", lora_path="org/better", load_inplace=True).status_code == 200
        assert post(server, UNLOAD, lora_name="two").status_code == 200
        wait_until(lambda: states(server) == ["ready", "ready"])
        known = {"one": "org/better", "new": "org/new"}
        for number in range(2):  # each alone has to answer
            ask_for(server, f"{1 - number}/drain")
            wait_until(lambda number=number: states(server)[number] == "ready")  # type: ignore[misc]
            assert adapters(server) == known
            for name, path in known.items():
                assert ids(server, name) == continuation(prompt_ids("hello"), 9, path)
            unknown = answered(lambda: post(server, "/v1/completions", prompt="lo", model="two"))
            assert unknown.status_code == 404
            ask_for(server, f"{1 - number}/undrain")


async def test_an_answer_does_not_go_on_with_another_version_of_its_adapter(model: Path) -> None:
    flags = ("--replicas=2", "--admin-port=0", "--lora-adapters=one=org/one", "--graceful-termination-timeout=0")
    with running_launcher(model, *flags, RUNTIME, mock=(STEP,)) as server:
        server.wait_for(200)
        wait_until(lambda: states(server) == ["ready", "ready"])
        begun = [asyncio.Event(), asyncio.Event()]
        streams = [
            asyncio.create_task(stream(server.url, "hello", 500, event, adapter_id=name))
            for event, name in zip(begun, ("one", ""), strict=True)
        ]
        for event in begun:
            await event.wait()
        await asyncio.to_thread(post, server, LOAD, lora_name="one", lora_path="org/better", load_inplace=True)
        for number in range(2):
            await asyncio.to_thread(ask_for, server, f"{number}/restart")
            await asyncio.to_thread(server.wait_for_line, f"replica {number} is ready after its restart")
        ours, others = await asyncio.gather(*streams)
        assert ours.error is not None and "has changed since the answer began" in ours.error["error"]
        assert list(ours.ids) == continuation(prompt_ids("hello"), 500, "org/one")[: len(ours.ids)]
        assert others.error is None


async def test_every_http_process_knows_of_a_change_at_once(model: Path) -> None:
    with running_launcher(model, "--api-workers=2", RUNTIME, mock=(STEP,)) as server:
        server.wait_for(200)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, **NO_CERTIFICATES) as http:

            async def everywhere(model: str) -> set[int]:
                fresh = {"connection": "close"}
                body = {"prompt": "hello", "max_tokens": 2, "model": model}
                asked = (http.post("/v1/completions", json=body, headers=fresh) for _ in range(SEVERAL))
                return {answer.status_code for answer in await asyncio.gather(*asked)}

            for number in range(3):
                assert post(server, LOAD, lora_name=f"new{number}", lora_path="org/new").status_code == 200
                assert await everywhere(f"new{number}") == {200}
            assert post(server, LOAD, lora_name="new0", lora_path="org/new").status_code == 400
            assert post(server, UNLOAD, lora_name="new0").status_code == 200
            assert await everywhere("new0") <= {400, 404}, "400 where the process had not heard of it yet"
            assert await everywhere("new1") == {200}


async def test_a_stream_goes_on_with_the_adapter_that_it_began_with(model: Path) -> None:
    with running_launcher(model, "--lora-modules=one=org/one", RUNTIME, mock=(STEP,)) as server:
        server.wait_for(200)
        body = {"inputs": "hello", "parameters": {"max_new_tokens": 200, "adapter_id": "one"}}
        found: list[int] = []
        async with (
            httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http,
            http.stream("POST", server.url + "/generate_stream", json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if line:
                    found.append(json.loads(line.removeprefix("data:"))["token"]["id"])
                if len(found) == 1 and line:
                    await asyncio.to_thread(post, server, UNLOAD, lora_name="one")
        assert found == continuation(prompt_ids("hello"), 200, "org/one")
        assert adapters(server) == {}


def test_metrics_and_the_access_log_name_the_adapter(model: Path) -> None:
    with running_launcher(model, "--lora-adapters=one=org/one", "--max-loras=2") as server:
        server.wait_for(200)
        ids(server, "one")
        scrape = httpx.get(server.url + "/metrics", timeout=PATIENCE).text
        server.wait_for_line("adapter=one")
    lines = [line for line in scrape.splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert len(lines) == 1 and 'max_lora="2"' in lines[0]


def test_an_adapter_that_cannot_be_a_name_ends_the_server_with_one_line(model: Path) -> None:
    with running_launcher(model, "--lora-adapters=one=org/one,one=org/two") as server:
        assert server.process.wait(PATIENCE) == 2
        line = "error: --lora-adapters: two adapters are called 'one': give them different names, as in name=path\n"
        assert server.log.read_text() == line
