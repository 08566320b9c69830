"""Several HTTP processes on one port are one server: one count, one limit, one readiness, one end."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.processes.worker_spec import WORKER_MODULE
from gateway.request.shared_counters import SharedCounters
from tests.engine_mock import continuation
from tests.gateway.processes.test_launcher import STEP, begin, prompt_ids, stream
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, ROOT, Launcher, MockLauncher, children, closed, gone, running_launcher
from tests.servers import arguments

LIMIT = 16
SEVERAL = 24  # connections: the chance that all reach one of two processes is 1 in 8 million


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    model = write_model(tmp_path_factory.mktemp("workers"))
    with running_launcher(model, "--api-workers=2", f"--max-concurrent-requests={LIMIT}", mock=(STEP,)) as server:
        server.wait_for(200)
        yield server


def worker(server: Launcher) -> int:
    """The process id of the HTTP worker. Fails after `PATIENCE` without one."""
    deadline = time.monotonic() + PATIENCE
    while not (found := [pid for pid in children(server.process.pid) if WORKER_MODULE in arguments(pid)]):
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.01)
    return found[0]


async def held_streams(server: MockLauncher, new_tokens: int) -> list[asyncio.Task[Any]]:
    """As many streams of "hello" as there are permits, each with its first token; they wait while the hold exists."""
    server.hold.touch()
    return await asyncio.gather(*(begin(server.url, "hello", new_tokens) for _ in range(LIMIT)))


def settled(server: Launcher) -> list[dict[str, float]]:
    """Scrapes of all processes, once they agree; without the series that differs from scrape to scrape."""
    deadline = time.monotonic() + PATIENCE
    while True:
        scrapes = [server.gauges() for _ in range(SEVERAL)]
        for each in scrapes:
            each.pop('textgen_last_step_age_seconds{engine="0"}')
        if all(each == scrapes[0] for each in scrapes) or time.monotonic() > deadline:
            return scrapes
        time.sleep(0.2)


async def test_both_processes_serve_and_a_scrape_of_either_counts_everything_once(server: Launcher) -> None:
    before = server.gauges()
    for ids, error in await asyncio.gather(*(stream(server.url, f"hello {number}", 6) for number in range(LIMIT))):
        assert len(ids) == 6 and error is None
    first, *others = settled(server)
    assert all(other == first for other in others)
    added = {name: value - before.get(name, 0) for name, value in first.items()}
    assert added["tgi_request_count"] == added["tgi_request_success"] == added["tgi_request_duration_count"] == LIMIT
    assert added["tgi_request_generated_tokens_sum"] == 6 * LIMIT == added['textgen_generated_tokens_total{engine="0"}']
    steps = added['tgi_batch_inference_count{method="prefill"}'] + added['tgi_batch_inference_count{method="decode"}']
    assert 6 <= steps <= 6 * LIMIT
    assert added['vllm:request_success_total{engine="0",finished_reason="length",model_name="mock/model"}'] == LIMIT
    assert first['textgen_engine_state{engine="0",state="ready"}'] == 1 and first["tgi_batch_current_size"] == 0


async def test_limits_hold_over_all_processes(server: MockLauncher) -> None:
    running = await held_streams(server, 10)
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 1}}
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
        headers = {"connection": "close"}
        answers = await asyncio.gather(*(http.post("/generate", json=body, headers=headers) for _ in range(SEVERAL)))
    assert {answer.status_code for answer in answers} == {429}
    server.hold.unlink()
    assert await asyncio.gather(*running) == [(continuation(prompt_ids("hello"), 10), None)] * LIMIT


async def test_a_process_that_dies_costs_its_own_streams_only_and_comes_back(server: MockLauncher) -> None:
    before = server.gauges()["tgi_request_count"]
    killed = worker(server)
    running = await held_streams(server, 400)
    os.kill(killed, signal.SIGKILL)
    server.hold.unlink()
    whole, broken = (continuation(prompt_ids("hello"), 400), None), 0
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        broken += isinstance(outcome, httpx.TransportError)
        assert isinstance(outcome, httpx.TransportError) or outcome == whole
    assert broken < LIMIT  # that the killed process had all streams has a chance of 1 in 65,536
    assert await asyncio.to_thread(worker, server) != killed
    await asyncio.to_thread(server.wait_for, 200)
    outcomes = await asyncio.gather(*(stream(server.url, "hello", 400) for _ in range(LIMIT)))
    assert outcomes == [whole] * LIMIT, "a permit of the dead process was not given back"
    assert {each["tgi_request_count"] for each in settled(server)} == {before + 2 * LIMIT}


async def test_sigterm_lets_the_streams_of_all_processes_finish_and_turns_new_ones_away(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--api-workers=3") as server:
        server.wait_for(200)
        family = [server.process.pid, *children(server.process.pid)]
        running = await held_streams(server, 400)
        server.process.terminate()
        await asyncio.to_thread(server.wait_for, 503)
        assert await asyncio.wait_for(refusal_by_all(server), PATIENCE) == {"the server is shutting down"}
        server.hold.unlink()
        assert await asyncio.gather(*running) == [(continuation(prompt_ids("hello"), 400), None)] * LIMIT
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        assert len(family) == 4 and all(gone(pid) for pid in family)


async def refusal_by_all(server: Launcher) -> set[str]:
    """The messages of refused requests, once no process takes any: each process gets its SIGTERM at its own time."""
    while True:
        late = await asyncio.gather(*(stream(server.url, "late", 1) for _ in range(2 * LIMIT)))
        if all(error is not None for _, error in late):
            return {error["error"] for _, error in late if error is not None}


def test_the_port_is_not_shared_with_another_server_and_no_process_outlives_the_launcher(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--api-workers=2") as server:
        server.wait_for(200)
        port = server.url.rpartition(":")[2]
        flags = ("--hostname=127.0.0.1", f"--port={port}", "--api-workers=2")
        second = [sys.executable, "-m", "gateway.launcher", *flags]
        done = subprocess.run(second, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr.count("Address already in use")) == (71, 1)
        other = worker(server)
        server.process.kill()
        assert gone(other)
        assert closed(int(port))


def test_what_a_process_had_counted_is_forgotten_when_it_dies(tmp_path: Path) -> None:
    launcher = SharedCounters.create(tmp_path / "counters", rows=2, callers=2)
    assert not launcher.all_ready and not launcher.reached(0)
    other = SharedCounters(2, row=1, rows=2, file=tmp_path / "counters")
    other.set_ready(True)
    other.set_reached(0, True)
    other.hold(3, caller=1)
    other.queue(100)
    launcher.hold(2, caller=1)
    assert launcher.all_ready and launcher.reached(0)
    assert (launcher.active, launcher.queued_tokens, launcher.held(1)) == (5, 100, 5)
    launcher.clear(1)
    assert not launcher.all_ready and not launcher.reached(0)
    assert (launcher.active, launcher.queued_tokens, launcher.held(1)) == (2, 0, 2)
