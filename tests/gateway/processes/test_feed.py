"""`/dashboard/feed` of a whole server: the same numbers whichever process answers, and an end when it drains."""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.processes.test_launcher import STEP, begin, stream
from tests.gateway.toys import write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, MockLauncher, running_launcher, two_replicas

pytestmark = pytest.mark.slow

REQUESTS, TOKENS = 12, 6
CONNECTIONS = 12  # the chance that all reach one of two processes is 1 in 2,048
GENERATED = [f'textgen_generated_tokens_total{{engine="{engine}"}}' for engine in (0, 1)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with two_replicas(tmp_path_factory.mktemp("feed")) as server:
        yield server


async def first(server: MockLauncher, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first sample, on a connection of its own, of which this holds. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    async with (
        httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http,
        http.stream("GET", server.url + "/dashboard/feed") as answer,
    ):
        async for line in answer.aiter_lines():
            sample = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if "requests" in sample and holds(sample):
                return dict(sample)
            assert time.monotonic() < deadline, sample
    raise AssertionError("the feed ended")


async def test_whichever_process_answers_the_numbers_are_those_of_a_scrape(server: MockLauncher) -> None:
    answers = await asyncio.gather(*(stream(server.url, f"hello {n}", TOKENS) for n in range(REQUESTS)))
    assert all(error is None for _, error in answers)
    found = [first(server, lambda sample: sample["generated_tokens"] == REQUESTS * TOKENS) for _ in range(CONNECTIONS)]
    samples, scraped = await asyncio.gather(*found), await asyncio.to_thread(server.gauges)
    for sample in samples:
        assert sample["requests"] == scraped["tgi_request_count"] == REQUESTS
        assert sample["answered"] == scraped["tgi_request_success"] == REQUESTS
        assert [each["generated_tokens"] for each in sample["replicas"]] == [scraped[name] for name in GENERATED]
        assert [each["state"] for each in sample["replicas"]] == ["ready", "ready"]
        assert sample["restarts"] == sample["rejected"] == sample["failed"] == 0
        assert sample["running"] == sample["waiting"] == 0


async def test_all_processes_see_what_runs_and_how_long_it_took(server: MockLauncher) -> None:
    server.hold.touch()
    running = [await begin(server.url, f"hello {n}", 10) for n in range(6)]
    busy = await asyncio.gather(*(first(server, lambda sample: sample["running"] == 6) for _ in range(CONNECTIONS)))
    for sample in busy:
        assert sample["running"] == sum(each["running"] for each in sample["replicas"]) == 6
        median, high, highest = sample["first_token_seconds"]
        assert 0 < median <= high <= highest < PATIENCE
    server.hold.unlink()
    assert all(error is None for _, error in await asyncio.gather(*running))


async def test_sigterm_ends_the_feed_while_running_requests_go_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_launcher(write_model(tmp_path_factory.mktemp("end")), "--api-workers=2", mock=(STEP,)) as server:
        await asyncio.to_thread(server.wait_for, 200)
        watching = [asyncio.create_task(until_its_end(server)) for _ in range(4)]
        await asyncio.gather(*(asyncio.create_task(first(server, lambda _: True)) for _ in range(4)))
        server.hold.touch()
        running = await begin(server.url, "hello", 10)
        server.process.send_signal(signal.SIGTERM)
        assert all(await asyncio.wait_for(asyncio.gather(*watching), PATIENCE))
        assert not running.done()
        server.hold.unlink()
        ids, error = await running
        assert (len(ids), error) == (10, None)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0


async def until_its_end(server: MockLauncher) -> bool:
    """Watch the feed until the server ends the stream; whether that was in order and after an event."""
    async with (
        httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http,
        http.stream("GET", server.url + "/dashboard/feed") as answer,
    ):
        lines = [line async for line in answer.aiter_lines()]
    return answer.status_code == 200 and lines[0] == "event: history"
