"""`/metrics` and `/info` of two engines behind two HTTP processes: real ones, of which one dies."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.processes.test_launcher import begin, stream
from tests.processes import PATIENCE, MockLauncher, two_replicas
from tests.servers import arguments, children

pytestmark = pytest.mark.slow

REQUESTS, TOKENS = 12, 6
STATES = [f'textgen_engine_state{{engine="{engine}",state="ready"}}' for engine in (0, 1)]
RUNNING = [f'textgen_replica_requests{{engine="{engine}",state="running"}}' for engine in (0, 1)]
GENERATED = [f'textgen_generated_tokens_total{{engine="{engine}"}}' for engine in (0, 1)]
VLLM_GENERATED = [f'vllm:generation_tokens_total{{engine="{engine}",model_name="mock/model"}}' for engine in (0, 1)]
VLLM_RUNNING = 'vllm:num_requests_running{engine="0",model_name="mock/model"}'
DIED = [f'textgen_engine_restarts_total{{cause="died",engine="{engine}"}}' for engine in (0, 1)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with two_replicas(tmp_path_factory.mktemp("replicas")) as server:
        yield server


async def scrape(server: MockLauncher, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The first scrape of which this holds. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not holds(found := await asyncio.to_thread(server.gauges)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)
    return found


def both_ready(found: dict[str, float]) -> bool:
    return all(found.get(name) == 1 for name in STATES)


def picks(found: dict[str, float]) -> float:
    return sum(value for name, value in found.items() if name.startswith("textgen_replica_picks_total{"))


def kill(server: MockLauncher, engine: int) -> None:
    [pid] = [pid for pid in children(server.process.pid) if f"/engine-{engine}.sock" in " ".join(arguments(pid))]
    os.kill(pid, signal.SIGKILL)


async def test_two_engines_are_told_apart_and_routers_see_one_server(server: MockLauncher) -> None:
    await scrape(server, both_ready)
    answers = await asyncio.gather(*(stream(server.url, f"hello {n}", TOKENS) for n in range(REQUESTS)))
    assert all(error is None for _, error in answers)
    found = await scrape(server, lambda found: sum(found[name] for name in GENERATED) == REQUESTS * TOKENS)
    assert all(found[name] for name in GENERATED)
    assert [found[name] for name in VLLM_GENERATED] == [found[name] for name in GENERATED]
    assert picks(found) == REQUESTS
    assert [name for name in found if name.startswith("vllm:num_requests_running{")] == [VLLM_RUNNING]
    info: list[dict[str, Any]] = httpx.get(server.url + "/info", timeout=PATIENCE).json()["replicas"]
    assert [(each["index"], each["state"]) for each in info] == [(0, "ready"), (1, "ready")]


async def test_an_engine_that_dies_counts_no_more_and_its_requests_are_seen_to_move(server: MockLauncher) -> None:
    before = await scrape(server, both_ready)
    server.hold.touch()
    streams = [await begin(server.url, f"hello {n}", 40) for n in range(8)]
    busy = await scrape(server, lambda found: sum(found[name] for name in RUNNING) == 8)
    there = busy[RUNNING[1]]
    assert 0 < there < 8 and busy["tgi_batch_current_size"] == busy[VLLM_RUNNING] == 8
    kill(server, 1)
    # Several processes write what a scrape reads, each when it learns of it.
    lost = (there, 0, 0, 1)
    told = ('textgen_request_moves_total{cause="lost"}', RUNNING[1], *DIED)
    await scrape(server, lambda found: tuple(found[name] for name in told) == lost)
    server.hold.unlink()
    assert all(error is None for _, error in await asyncio.gather(*streams))
    over = (0, 0)
    after = await scrape(
        server, lambda found: both_ready(found) and (found[GENERATED[1]], found["tgi_batch_current_size"]) == over
    )
    assert picks(after) - picks(before) == 8 + there
    assert after['textgen_replica_picks_total{engine="0",reason="moved"}'] == there
    assert after[GENERATED[0]] > before[GENERATED[0]]
