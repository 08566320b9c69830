"""The launcher as users run it: a real process, real signals, an engine that dies, and what clients see of it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.processes.welcome import PLAYGROUND
from tests.engine_mock import continuation
from tests.gateway.toys import byte_level, write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, ROOT, Launcher, closed, gone, running_launcher, start
from tests.servers import children, descendants

pytestmark = pytest.mark.slow

STEP = "--step-seconds=0.003"
TOKENIZER = byte_level()


def prompt_ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


async def stream(
    url: str, text: str, new_tokens: int, begun: asyncio.Event | None = None, **client: Any
) -> tuple[list[int], dict[str, Any] | None]:
    """Token ids of a `/generate_stream`, and the error in which it ended: an event, or an answer other than 200.

    The first token sets `begun`.
    """
    body = {"inputs": text, "parameters": {"max_new_tokens": new_tokens}}
    ids: list[int] = []
    async with (
        httpx.AsyncClient(timeout=PATIENCE, **(NO_CERTIFICATES | client)) as http,
        http.stream("POST", url + "/generate_stream", json=body) as answer,
    ):
        if answer.status_code != 200:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            return [], json.loads(await answer.aread())
        async for line in answer.aiter_lines():
            if line:
                event = json.loads(line.removeprefix("data:"))
                if "error" in event:
                    return ids, event
                ids.append(event["token"]["id"])
                if begun is not None:
                    begun.set()
    return ids, None


async def begin(url: str, text: str, new_tokens: int) -> "asyncio.Task[tuple[list[int], dict[str, Any] | None]]":
    """Start a `stream`, and wait for its first token."""
    begun = asyncio.Event()
    task = asyncio.create_task(stream(url, text, new_tokens, begun))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    return task


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_it_listens_while_the_engine_loads_and_says_when_it_is_ready(model: Path) -> None:
    with running_launcher(model, "--max-input-tokens=5000", held=True) as server:
        server.wait_for(200, "/health/live")
        server.wait_for_line("engine: compiling 1/1")
        answer = httpx.post(server.url + "/generate", json={"inputs": "hello"}, timeout=PATIENCE)
        assert answer.status_code == 503 and 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json() == {"error": "the model is not ready: compiling 1/1", "error_type": "unavailable"}
        assert server.status() == server.status("/ping") == server.status("/health/ready") == 503
        server.hold.unlink()
        server.wait_for(200)
        body = {"inputs": "hello", "parameters": {"max_new_tokens": 4}}
        answer = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE)
        assert answer.status_code == 200
    log = server.log.read_text()
    assert f"listening on {server.url}" in log and "engine: compiling 1/1" in log
    assert log.count(f"ready: mock/model (float32, 1 x mock) on {server.url} after ") == 1
    assert "s, with a context of 2048 tokens" in log
    assert f"page: {server.url}{PLAYGROUND}\n" in log and f"try: curl {server.url}/v1/chat/completions -H" in log
    assert "prompts have at most 2047 tokens, not --max-input-tokens 5000" in log


@pytest.mark.parametrize(
    ("options", "formats"),
    [((), ("hermes", "qwen3")), (("--tool-call-parser=none", "--reasoning-parser=granite"), ("none", "granite"))],
)
def test_one_line_says_how_calls_and_reasoning_are_read(
    tmp_path: Path, options: tuple[str, ...], formats: tuple[str, str]
) -> None:
    write_model(tmp_path, template="<tool_call></tool_call><think></think>")
    with running_launcher(tmp_path, "--api-workers=2", *options) as server:
        server.wait_for(200)
    tools, reasoning = formats
    assert server.log.read_text().count(f"calls of tools are read as {tools}, reasoning as {reasoning}\n") == 1
    assert server.log.read_text().count("calls of tools are read as") == 1


def test_a_busy_port_is_one_line_and_exit_code_71() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "gateway.launcher", "--hostname=127.0.0.1", f"--port={port}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 71
    assert done.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_with_all_its_streams_closed_it_ends_with_the_exit_code_that_it_should() -> None:
    command = ["sh", "-c", 'exec "$0" -m gateway.launcher --port=http <&- >&- 2>&-', sys.executable]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE).returncode == 2


@pytest.mark.parametrize("code", [2, 65, 69, 77])
def test_a_model_that_cannot_load_ends_the_server_with_the_engines_line_and_code(model: Path, code: int) -> None:
    with running_launcher(model, mock=(f"--fail-with={code}",)) as server:
        assert server.process.wait(PATIENCE) == code
        assert server.log.read_text().count("error: told to fail\n") == 1
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_tokenizer_is_one_line_and_exit_code_65(model: Path, workers: int) -> None:
    (model / "tokenizer.json").write_text("{")
    with running_launcher(model, f"--api-workers={workers}") as server:
        assert server.process.wait(PATIENCE) == 65
        log = server.log.read_text()
        assert log.count("error: ") == 1 and "tokenizer.json" in log and "Traceback" not in log


@pytest.mark.parametrize("resume", [True, False])
async def test_killing_the_engine_ends_each_stream_exact_or_in_one_error_and_it_comes_back(
    model: Path, resume: bool
) -> None:
    with running_launcher(model, f"--resume-requests={resume}", mock=(STEP,)) as server:
        server.wait_for(200)
        for round_number in range(3):
            texts = [f"hello {round_number} {n}" for n in range(8)]
            lengths = [10 + 25 * n for n in range(8)]
            tasks = [asyncio.create_task(stream(server.url, *each)) for each in zip(texts, lengths, strict=True)]
            await asyncio.sleep(0.15 + 0.1 * round_number)
            os.kill(server.engine_pid(), signal.SIGKILL)
            answers = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            for text, length, (ids, error) in zip(texts, lengths, answers, strict=True):
                whole = continuation(prompt_ids(text), length)
                assert ids == (whole if error is None else whole[: len(ids)])
                assert not (resume and error)
            assert server.status("/health/live") == 200
            await asyncio.to_thread(server.wait_for, 200)
            assert (await stream(server.url, "hello", 20))[0] == continuation(prompt_ids("hello"), 20)
        metrics = httpx.get(server.url + "/metrics", timeout=PATIENCE).text
        assert 'textgen_engine_restarts_total{cause="died",engine="0"} 3.0' in metrics


def test_an_engine_that_dies_too_often_ends_the_server_with_70(model: Path) -> None:
    with running_launcher(model, "--max-engine-restarts=2", mock=("--fail-with=1",)) as server:
        assert server.process.wait(PATIENCE) == os.EX_SOFTWARE
        log = server.log.read_text()
    assert "the engine ended with code 1; starting it again in 0 s" in log
    assert log.count("starting it again") == 2
    assert log.count("the engine ended with code 1, and 2 restarts in 600 s have not helped: giving up") == 1
    assert not list(model.glob("s-*"))


async def test_a_stopped_engine_is_found_killed_and_replaced(model: Path) -> None:
    with running_launcher(model, "--engine-hang-timeout=5", "--resume-requests=false", mock=(STEP,)) as server:
        server.wait_for(200)
        first = server.engine_pid()
        server.hold.touch()
        task = await begin(server.url, "hello", 1900)
        os.kill(first, signal.SIGSTOP)
        _, error = await asyncio.wait_for(task, PATIENCE)
        assert error is not None
        assert await asyncio.to_thread(gone, first)
        server.hold.unlink()
        await asyncio.to_thread(server.wait_for, 200)
        assert server.engine_pid() != first
        assert (
            'textgen_engine_restarts_total{cause="hung",engine="0"} 1.0'
            in httpx.get(server.url + "/metrics", timeout=PATIENCE).text
        )


@pytest.fixture
def heeded_hangup() -> Iterator[None]:
    """Under nohup the tests' own processes would begin with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_lets_running_streams_finish_and_turns_new_ones_away(
    model: Path, number: int, heeded_hangup: None
) -> None:
    with running_launcher(model, mock=(STEP,)) as server:
        server.wait_for(200)
        engine = server.engine_pid()
        server.hold.touch()
        task = await begin(server.url, "hello", 200)
        server.process.send_signal(number)
        await asyncio.to_thread(server.wait_for, 503)
        assert server.status("/health/live") == 200
        assert (await stream(server.url, "late", 5))[1] == {
            "error": "the server is shutting down",
            "error_type": "unavailable",
        }
        server.hold.unlink()
        assert await task == (continuation(prompt_ids("hello"), 200), None)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        assert gone(engine)
    assert not list(model.glob("s-*"))


async def test_streams_that_outlast_the_grace_time_end_in_an_error_event(model: Path) -> None:
    with running_launcher(model, "-g", "0.5") as server:
        server.wait_for(200)
        server.hold.touch()
        task = await begin(server.url, "hello", 1900)
        server.process.terminate()
        ids, error = await task
        assert error == {"error": "the server is shutting down", "error_type": "unavailable"}
        assert ids == continuation(prompt_ids("hello"), 1900)[: len(ids)] != []
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0


async def test_a_second_signal_stops_at_once(model: Path) -> None:
    with running_launcher(model) as server:
        server.wait_for(200)
        engine = server.engine_pid()
        server.hold.touch()
        task = await begin(server.url, "hello", 1900)
        server.process.terminate()
        await asyncio.to_thread(server.wait_for, 503)
        server.process.terminate()
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 128 + signal.SIGTERM
        assert gone(engine)
        assert (await task)[1] is not None
    assert not list(model.glob("s-*"))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("moment", ["exec", "directory", "port", "engine", "socket"])
def test_sigterm_at_any_moment_of_the_start_leaves_nothing_behind(model: Path, moment: str, workers: int) -> None:
    log = model / "launcher.log"
    reached: dict[str, Callable[[int], object]] = {
        "exec": lambda _: True,
        "directory": lambda _: list(model.glob("s-*")),
        "port": lambda _: "listening on" in log.read_text(),
        "engine": children,
        "socket": lambda _: list(model.glob("s-*/engine.sock")),
    }
    flags = ("--port=0", "--hostname=127.0.0.1", f"--shard-uds-path={model}/s", f"--api-workers={workers}")
    mock = (f"--model-dir={model}", "--load-seconds=600")
    with log.open("w") as stderr:
        process = start("tests.mock_launcher", *flags, "--", *mock, stderr=stderr)
    try:
        while not reached[moment](process.pid):
            assert process.poll() is None, log.read_text()
        family = descendants(process.pid)
        process.terminate()
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
    assert not list(model.glob("s-*")) and all(map(gone, family))
    assert "Traceback" not in log.read_text()


def test_stopping_while_the_engine_loads_is_immediate(model: Path) -> None:
    with running_launcher(model, held=True) as server:
        server.wait_for(503)
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_killing_the_launcher_leaves_no_engine_and_the_next_one_finds_the_port_free_and_cleans_up(
    model: Path, workers: int
) -> None:
    with running_launcher(model, f"--api-workers={workers}") as server:
        server.wait_for(200)
        engines, port = children(server.process.pid), server.url.rpartition(":")[2]
        server.process.kill()
        assert all(map(gone, engines)) and closed(int(port))
        assert [each.name for each in model.glob("s-*")] == [f"s-{port}"]
        with running_launcher(model) as elsewhere:
            elsewhere.wait_for(200)
            assert [each.name for each in model.glob("s-*")] == [f"s-{elsewhere.url.rpartition(':')[2]}"]
        with running_launcher(model, f"--port={port}") as again:
            Launcher(again.process, server.url, again.log).wait_for(200)


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--hostname=0.0.0.0"], True),
        (["--hostname=::"], True),
        (["--hostname=0.0.0.0", "--api-key=hush"], False),
        (["--hostname=127.0.0.1"], False),
        (["--hostname=::1"], False),
    ],
)
def test_listening_beyond_the_machine_without_a_key_is_warned_of(model: Path, flags: list[str], warned: bool) -> None:
    with running_launcher(model, *flags) as server:
        log = server.log.read_text()
    port = server.url.rpartition(":")[2]
    advice = f"port {port} may use this server: set API_KEY or --api-key-file to ask for a key, or --hostname 127.0.0.1"
    assert log.count(" WARNING ") == log.count(advice) == int(warned)


def test_the_key_guards_every_route_that_computes_and_is_in_no_argument_of_the_engine(model: Path) -> None:
    with running_launcher(model, "--api-key=hush") as server:
        server.wait_for(200)
        refused = httpx.post(server.url + "/generate", json={"inputs": "hello"}, timeout=PATIENCE)
        assert refused.status_code == 401
        headers = {"authorization": "Bearer hush"}
        assert (
            httpx.post(
                server.url + "/generate", json={"inputs": "hello"}, headers=headers, timeout=PATIENCE
            ).status_code
            == 200
        )
        engine = Path(f"/proc/{server.engine_pid()}")
        assert "hush" not in (engine / "cmdline").read_text() + (engine / "environ").read_text()
    assert "hush" not in server.log.read_text()


def test_the_engines_lines_are_json_too_and_so_is_its_last(model: Path) -> None:
    with running_launcher(model, "--json-output", mock=("--fail-with=65",)) as server:
        assert server.process.wait(PATIENCE) == 65
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    fields = {"timestamp", "level", "message", "target", "filename", "line_number"}
    assert [line for line in lines if line["message"] == "told to fail" and line.keys() == fields]


def test_json_logs_are_one_object_per_line_and_hold_no_prompt(model: Path) -> None:
    with running_launcher(model, "--json-output", "--log-level=debug") as server:
        server.wait_for(200)
        httpx.post(server.url + "/generate?secret=query", json={"inputs": "my private words"}, timeout=PATIENCE)
        server.process.terminate()
        server.process.wait(PATIENCE)
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"timestamp", "level", "message", "target"} <= line.keys() for line in lines)
    requests = [line for line in lines if line.get("path") == "/generate"]
    assert [(line["method"], line["status"]) for line in requests] == [("POST", 200)]
    assert {line["level"] for line in lines if line.get("path") == "/health"} == {"DEBUG"}
    assert "private" not in server.log.read_text() and "secret" not in server.log.read_text()
