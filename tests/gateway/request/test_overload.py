"""More load than the server can carry: its goodput stays, and all other requests are told when to return.

The mock engine has a known speed, so capacity is a number. The load is open: requests come at their rate, however the
requests before are answered. Other work on the machine only lowers goodput, so the best of several tries is what the
server can do; a try on a machine with more work than cores proves nothing.
`python -m tests.gateway.request.test_overload 30` runs for 30 s each and prints the figures.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.gateway.toys import write_model
from tests.processes import PATIENCE, Launcher, is_busy, running_launcher
from tests.raw_http import Answer, ask

pytestmark = pytest.mark.slow

ROWS, STEP_SECONDS, TOKENS, PERMITS = 4, 0.025, 10, 12
CAPACITY = ROWS / (STEP_SECONDS * TOKENS)  # requests a second
SECONDS = 3.0
GOODPUT = 0.9  # share of what the server carries when it is just busy
PROBE_SECONDS = 0.05  # within which 99 of 100 probes are answered


@dataclass(frozen=True)
class Load:
    """The answers to requests sent at `rate` a second for `seconds`."""

    rate: float
    seconds: float
    statuses: Counter[int]
    advice: tuple[int, ...]  # Retry-After of the refusals
    waits: tuple[float, ...]  # seconds until each 200
    probes: tuple[float, ...]  # seconds until each answer of the live probe
    crowded: bool  # the machine was busy with other work, so the times mean nothing

    @property
    def goodput(self) -> float:
        return self.statuses[200] / self.seconds

    @property
    def probe(self) -> float:
        """Seconds within which 99 of 100 probes are answered."""
        return quantiles(self.probes, n=100)[98]

    def carries(self, peak: float) -> bool:
        """Whether goodput and probes were as promised, for a server that answers `peak` requests a second when busy."""
        return self.crowded or (self.goodput >= GOODPUT * peak and self.probe < PROBE_SECONDS)


@asynccontextmanager
async def overloadable(directory: Path) -> AsyncIterator[Launcher]:
    mock = (f"--step-seconds={STEP_SECONDS}", f"--max-batch-size={ROWS}")
    with running_launcher(write_model(directory), f"--max-concurrent-requests={PERMITS}", mock=mock) as server:
        await asyncio.to_thread(server.wait_for, 200)
        yield server


async def busy(server: Launcher, seconds: float) -> float:
    """Answers a second when as many clients as there are permits ask again as soon as they are answered."""
    done, began = 0, time.perf_counter()

    async def ask_on() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            assert (await generate(server)).status == 200
            done += 1

    await asyncio.gather(*(ask_on() for _ in range(PERMITS)))
    return done / (time.perf_counter() - began)


async def load(server: Launcher, rate: float, seconds: float) -> Load:
    began, answers, probes = time.perf_counter(), [], []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(began + number / rate - time.perf_counter())
        answers.append(asyncio.create_task(timed(generate(server))))
        if number % 5 == 0:
            probes.append(asyncio.create_task(timed(ask(server.url, "/health/live"))))
    responses = await asyncio.gather(*answers)
    spent = time.perf_counter() - began
    live = await asyncio.gather(*probes)
    assert all(answer.status == 200 for answer, _ in live)
    return Load(
        rate,
        spent,
        statuses=Counter(answer.status for answer, _ in responses),
        advice=tuple(int(answer.headers["retry-after"]) for answer, _ in responses if answer.status == 429),
        waits=tuple(seconds for answer, seconds in responses if answer.status == 200),
        probes=tuple(seconds for _, seconds in live),
        crowded=is_busy(),
    )


async def generate(server: Launcher) -> Answer:
    return await ask(server.url, "/generate", {"inputs": "hello", "parameters": {"max_new_tokens": TOKENS}})


async def timed(asking: Awaitable[Answer]) -> tuple[Answer, float]:
    """The answer, and the seconds it took."""
    began = time.perf_counter()
    return await asking, time.perf_counter() - began


@pytest.fixture(scope="module", params=[2, 10])
def loads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, Load]]:
    """Tries, each of answers a second when busy and then an overload, until one is as promised."""
    return asyncio.run(tries(tmp_path_factory.mktemp("overload"), request.param))


async def tries(directory: Path, times: int) -> list[tuple[float, Load]]:
    """Each try has a server of its own: permits that one has promised to refused requests stay free for seconds."""
    found: list[tuple[float, Load]] = []
    began = time.monotonic()
    while not any(each.carries(peak) for peak, each in found) and time.monotonic() - began < PATIENCE:
        async with overloadable(directory) as server:
            found.append((await busy(server, SECONDS), await load(server, times * CAPACITY, SECONDS)))
    return found


def test_an_overloaded_server_answers_200_and_429_only(loads: list[tuple[float, Load]]) -> None:
    for _, each in loads:
        assert each.statuses.keys() == {200, 429}, each


def test_refusals_say_when_to_return(loads: list[tuple[float, Load]]) -> None:
    for _, each in loads:
        assert len(each.advice) == each.statuses[429] and all(1 <= seconds <= 60 for seconds in each.advice)


def test_an_overloaded_server_carries_what_a_busy_one_does_and_its_probe_answers_at_once(
    loads: list[tuple[float, Load]],
) -> None:
    assert all(peak <= 1.05 * CAPACITY for peak, _ in loads)
    assert any(each.carries(peak) for peak, each in loads), loads


def test_the_live_probe_does_not_wait_for_what_is_computed(loads: list[tuple[float, Load]]) -> None:
    assert all(median(each.probes) < median(each.waits) for _, each in loads)


async def measure(directory: Path, seconds: float) -> tuple[float, list[Load]]:
    async with overloadable(directory) as server:
        return await busy(server, seconds), [await load(server, times * CAPACITY, seconds) for times in (2, 10)]


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        peak, overloads = asyncio.run(measure(Path(directory), seconds))
    print(f"busy: {peak:.1f} requests/s of {CAPACITY:.1f}")
    for each in overloads:
        answered = f"{each.goodput:.1f}/s answered, {dict(each.statuses)}, probe p99 {1e3 * each.probe:.0f} ms"
        print(f"{each.rate:.0f}/s offered: {answered}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
