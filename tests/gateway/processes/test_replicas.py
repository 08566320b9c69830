"""`--replicas`: engine processes that are killed, stopped, drained and restarted behind clients who do not notice."""

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.toys import write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, MockLauncher, running_launcher
from tests.server.streams import Outcome, stream

pytestmark = pytest.mark.slow

STREAMS = 16
STEP = "--step-seconds=0.01"


@contextmanager
def replicas(directory: Path, count: int, *options: str, mock: tuple[str, ...] = (STEP,)) -> Iterator[MockLauncher]:
    """A launcher whose replicas are all ready."""
    flags = (f"--replicas={count}", "--admin-port=0", "--max-engine-restarts=1000", *options)
    with running_launcher(write_model(directory), *flags, mock=mock) as server:
        server.wait_for(200)
        wait_until(lambda: states(server) == ["ready"] * count)
        yield server


def told(server: MockLauncher) -> list[dict[str, Any]]:
    answer = httpx.get(server.admin_url + "/admin/replicas", timeout=PATIENCE, **NO_CERTIFICATES)
    return list(answer.json()["replicas"])


def states(server: MockLauncher) -> list[str]:
    return [each["state"] for each in told(server)]


def ask_for(server: MockLauncher, what: str, **headers: str) -> httpx.Response:
    url = f"{server.admin_url}/admin/replicas/{what}"
    return httpx.post(url, headers=headers, timeout=PATIENCE, **NO_CERTIFICATES)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def others(found: list[str], number: int) -> list[str]:
    return [each for place, each in enumerate(found) if place != number]


async def soon(condition: Any) -> None:
    """As `wait_until`, for a condition that asks the server while streams run."""
    await asyncio.to_thread(wait_until, condition)


class Load:
    """Streams that follow one another, in so many lanes; `outcomes` are those that have ended, by prompt and length."""

    def __init__(self, server: MockLauncher) -> None:
        self._server = server
        self.outcomes: list[tuple[str, int, Outcome]] = []
        self.stopping = False

    async def lane(self, number: int) -> None:
        chance = random.Random(number)
        while not self.stopping:
            inputs, length = f"lane {number} {chance.randrange(1000)}", chance.randint(1, 150)
            self.outcomes.append((inputs, length, await stream(self._server.url, inputs, length)))


@asynccontextmanager
async def load(server: MockLauncher) -> AsyncIterator[Load]:
    """Streams run in `STREAMS` lanes; at the end each must have been complete, and exact."""
    running = Load(server)
    lanes = [asyncio.create_task(running.lane(number)) for number in range(STREAMS)]
    yield running
    running.stopping = True
    await asyncio.wait_for(asyncio.gather(*lanes), PATIENCE)
    assert len(running.outcomes) >= STREAMS
    sample = random.Random(0).sample(running.outcomes, min(40, len(running.outcomes)))
    for _, length, outcome in running.outcomes:
        assert outcome.error is None and len(outcome.ids) == length
    undisturbed = await asyncio.gather(*(stream(server.url, inputs, length) for inputs, length, _ in sample))
    assert undisturbed == [outcome for *_, outcome in sample]


@pytest.mark.parametrize(("count", "workers"), [(2, 1), (3, 2)])
async def test_no_client_notices_that_engines_are_killed(tmp_path: Path, count: int, workers: int) -> None:
    chance = random.Random(count)
    with replicas(tmp_path, count, f"--api-workers={workers}") as server:
        async with load(server):
            for kill in range(10):
                await asyncio.sleep(chance.uniform(0.1, 0.5))
                victim = kill % count
                await soon(lambda victim=victim: others(states(server), victim) == ["ready"] * (count - 1))  # type: ignore[misc]
                os.kill(server.engine_pid(victim), signal.SIGKILL)
        assert server.process.poll() is None


async def test_a_stream_of_the_only_engine_goes_on_when_that_is_back(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), mock=(STEP,)) as server:
        server.wait_for(200)
        begun = [asyncio.Event() for _ in range(4)]
        streams = [asyncio.create_task(stream(server.url, f"{n}", 300, event)) for n, event in enumerate(begun)]
        for event in begun:
            await event.wait()
        os.kill(server.engine_pid(), signal.SIGKILL)
        await soon(lambda: server.status() == 503)
        assert (await stream(server.url, "new", 2)).error == {
            "error": "the model is not ready",
            "error_type": "unavailable",
        }
        outcomes = await asyncio.wait_for(asyncio.gather(*streams), PATIENCE)
        for n, outcome in enumerate(outcomes):
            assert outcome.error is None and outcome == await stream(server.url, f"{n}", 300)


async def test_no_client_notices_that_an_engine_hangs(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, "--engine-hang-timeout=2") as server:
        async with load(server):
            os.kill(server.engine_pid(0), signal.SIGSTOP)
            await soon(lambda: states(server)[0] == "lost")
            await soon(lambda: states(server) == ["ready", "ready"])
        assert 'textgen_request_moves_total{cause="lost"}' in httpx.get(server.url + "/metrics").text


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_rolling_restart_costs_nobody_anything(tmp_path: Path, workers: int) -> None:
    flags = (f"--api-workers={workers}", "--graceful-termination-timeout=1")
    with replicas(tmp_path, 2, *flags) as server:
        before = [server.engine_pid(number) for number in range(2)]
        async with load(server) as running:
            await asyncio.sleep(0.5)
            assert (await asyncio.to_thread(ask_for, server, "restart")).status_code == 202
            assert (await asyncio.to_thread(ask_for, server, "restart")).status_code == 409
            await asyncio.to_thread(server.wait_for_line, "all replicas have been restarted")
            assert len(running.outcomes) >= STREAMS
        after = [server.engine_pid(number) for number in range(2)]
        assert not {*before} & {*after} and states(server) == ["ready", "ready"]
        log = server.log.read_text()
        assert "giving up" not in log and log.count("was stopped, and is started again") == 2


async def test_what_outlasts_the_grace_time_moves(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, "--graceful-termination-timeout=0.5") as server:
        long = [asyncio.create_task(stream(server.url, f"long {number}", 400)) for number in range(4)]
        await soon(lambda: [each["running"] for each in told(server)] == [2, 2])
        ask_for(server, "0/drain")
        assert states(server) == ["draining", "ready"]
        await soon(lambda: [each["running"] for each in told(server)] == [0, 4])
        assert server.status() == 200
        for each in await asyncio.gather(*long):
            assert each.error is None and len(each.ids) == 400
        await stream(server.url, "on the other", 2)
        ask_for(server, "1/drain")
        await soon(lambda: server.status() == 503)
        ask_for(server, "0/undrain")
        await soon(lambda: server.status() == 200)
        assert states(server) == ["ready", "draining"]
        assert (await stream(server.url, "on the first", 2)).error is None


async def test_two_replicas_answer_twice_as_much(tmp_path: Path) -> None:
    """Engines of 4 rows and 20 ms a step. The two servers take turns, and each pair of turns gives one ratio: 1.9 to 2
    on an idle machine, of which other tests leave less.
    """
    slow = ("--step-seconds=0.02", "--max-batch-size=4")
    (first := tmp_path / "one").mkdir()
    (second := tmp_path / "two").mkdir()
    with replicas(first, 1, mock=slow) as one, replicas(second, 2, mock=slow) as two:
        spent = [[await seconds_of_streams(each) for each in (one, two)] for _ in range(3)]
    ratios = [alone / together for alone, together in spent]
    assert statistics.median(ratios) >= 1.5, ratios


async def seconds_of_streams(server: MockLauncher) -> float:
    """For 16 streams of 30 tokens."""
    began = time.monotonic()
    await asyncio.gather(*(stream(server.url, f"stream {number}", 30) for number in range(16)))
    return time.monotonic() - began


def test_one_replica_that_cannot_be_kept_running_leaves_the_others_alone(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, "--max-engine-restarts=2") as server:
        for _ in range(3):
            wait_until(lambda: states(server)[0] == "ready")
            os.kill(server.engine_pid(0), signal.SIGKILL)
            wait_until(lambda: states(server)[0] == "lost")
        server.wait_for_line("giving up")
        assert server.status() == 200 and server.process.poll() is None
        for _ in range(3):
            wait_until(lambda: server.process.poll() is not None or states(server)[1] == "ready")
            os.kill(server.engine_pid(1), signal.SIGKILL)
            with suppress(httpx.TransportError):
                wait_until(lambda: states(server)[1] == "lost")
        assert server.process.wait(PATIENCE) == 70


def test_a_wrong_option_ends_all_of_them_and_the_server_at_once(tmp_path: Path) -> None:
    flags = ("--replicas=2",)
    with running_launcher(write_model(tmp_path), *flags, mock=("--fail-with=65",)) as server:
        assert server.process.wait(PATIENCE) == 65


def test_who_may_operate(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, "--api-key=hush") as server:
        assert ask_for(server, "0/drain").status_code == 401
        key = {"authorization": "Bearer hush"}
        assert ask_for(server, "0/drain", **key, origin="http://evil.example").status_code == 403
        assert ask_for(server, "2/drain", **key).json() == {"error": "there is no replica 2: the last is 1"}
        assert ask_for(server, "x/drain", **key).status_code == 404
        assert states(server) == ["ready", "ready"]
        assert ask_for(server, "0/drain", **key).status_code == 202
        assert states(server) == ["draining", "ready"]
        on_main_port = httpx.get(server.url + "/admin/replicas", headers=key, timeout=PATIENCE)
        assert on_main_port.status_code == 404
