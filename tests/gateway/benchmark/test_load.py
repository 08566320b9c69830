"""Loads against a server that answers as it is told to: how many are in flight, and when each is sent."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.dialect import Completions
from gateway.benchmark.http_client import HttpClient
from gateway.benchmark.load import closed_loop, open_loop
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.sampling import Sampling
from gateway.benchmark.schedule import scheduled
from gateway.benchmark.sender import Sender
from tests.gateway.benchmark.fake_server import Answers, FakeServer, Script, stream

STALL = 1.0  # seconds


@asynccontextmanager
async def sending(answers: Answers, **options: float) -> AsyncIterator[tuple[Sender, FakeServer]]:
    async with FakeServer(answers).running() as server:
        client = HttpClient(server.url)
        dialect = Completions("fake", Sampling(BenchmarkOptions()), lengths=True)
        try:
            yield Sender(client, dialect, **options), server  # type: ignore[arg-type]
        finally:
            client.close()


def asked() -> "itertools.repeat[Prompt]":
    return itertools.repeat(Prompt("hello", tokens=2))


class Counting:
    """A sender that notes how many requests are in flight."""

    given_up = False

    def __init__(self) -> None:
        self.now = self.most = self.sent = 0

    async def send(self, prompt: Prompt, due: float | None = None) -> Answer:
        self.now, self.sent = self.now + 1, self.sent + 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        return Answer(0.0)


@pytest.mark.parametrize(("users", "requests"), [(1, 5), (4, 30), (8, 3)])
async def test_a_closed_loop_sends_so_many_with_so_many_in_flight(users: int, requests: int) -> None:
    sender = Counting()
    answers = await closed_loop(sender, asked(), users, requests)
    assert (len(answers), sender.sent, sender.most) == (requests, requests, min(users, requests))


async def test_a_closed_loop_ends_with_its_duration_and_waits_for_what_is_in_flight() -> None:
    sender = Counting()
    answers = await closed_loop(sender, asked(), 4, duration=0.05)
    assert sender.sent == len(answers) > 8 and sender.now == 0


async def test_an_open_loop_sends_on_time_while_the_server_stalls() -> None:
    """And the times of those that are sent meanwhile hold all of their wait: nothing is omitted."""
    due = [0.025 * number for number in range(20)]
    async with sending(lambda number, _: stream(2, wait=STALL)) as (sender, server):
        answers = await open_loop(sender, asked(), due)
    assert server.arrivals[-1] - server.arrivals[0] < STALL, "all are sent before the first is answered"
    assert np.diff([answer.start for answer in answers]) == pytest.approx(0.025)
    assert all(answer.complete and answer.ttft >= STALL and answer.late >= 0 for answer in answers)


async def test_times_of_an_open_loop_count_from_when_a_request_was_due() -> None:
    """The client itself stalls, as where its loop is blocked: the wait is not taken from the requests."""
    async with sending(lambda number, _: stream(2)) as (sender, _):
        running = asyncio.create_task(open_loop(sender, asked(), [0.0, 0.1, 0.2, 0.3]))
        await asyncio.sleep(0.05)
        time.sleep(0.4)  # what a client should not do
        answers = await running
    late = [answer.late for answer in answers[1:]]
    assert late == sorted(late, reverse=True) and late[0] > 0.2, "the first was due long before the others"
    assert all(answer.ttft >= answer.late for answer in answers)


async def test_a_closed_loop_hides_a_stall_that_an_open_one_shows() -> None:
    """One stall of a second: of users who wait for their answers it delays one request; of those who come by
    themselves, all that come meanwhile."""
    busy = asyncio.Lock()

    def stalls(number: int, _: object) -> Script:
        return stream(2, wait=STALL if number == 5 else 0.0)

    async with sending(stalls) as (sender, _):
        closed = await closed_loop(sender, asked(), 1, 20)
    assert sum(answer.ttft > STALL / 2 for answer in closed) == 1

    async with sending(stalls) as (sender, _):
        serial = _OneAtATime(sender, busy)
        opened = await open_loop(serial, asked(), [0.05 * number for number in range(20)])
    assert sum(answer.ttft > STALL / 2 for answer in opened) >= 8


class _OneAtATime:
    """A server that serves one request after another, in their order."""

    given_up = False

    def __init__(self, sender: Sender, lock: asyncio.Lock) -> None:
        self._sender, self._lock = sender, lock

    async def send(self, prompt: Prompt, due: float | None = None) -> Answer:
        async with self._lock:
            return await self._sender.send(prompt, due)


async def test_users_who_are_rejected_ask_again_but_not_at_once() -> None:
    async with sending(lambda number, _: Script(429, body="busy", headers={"retry-after": "1"})) as (sender, _):
        answers = await closed_loop(sender, asked(), 2, duration=0.5)
    assert {answer.outcome for answer in answers} == {Outcome.REJECTED} and len(answers) == 2


async def test_a_load_ends_when_its_server_is_gone() -> None:
    async with sending(lambda number, _: stream(2), patience=3) as (sender, server):
        server.die()
        answers = await closed_loop(sender, asked(), 1, 1000)
        assert sender.given_up and len(answers) == 3
        assert all(answer.outcome is Outcome.UNREACHABLE for answer in answers)
        assert len(await open_loop(sender, asked(), [0.0] * 50)) == 0


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_times_between_requests_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    """Of a gamma distribution the square of the relative deviation is 1 / shape."""
    gaps = np.diff(scheduled(5.0, burstiness, 1, 40_000, None))
    assert np.mean(gaps) == pytest.approx(1 / 5, rel=0.001)
    assert (np.std(gaps) / np.mean(gaps)) ** 2 == pytest.approx(1 / burstiness, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_so_many_requests_come_at_exactly_their_rate(seed: int) -> None:
    due = scheduled(4.0, 1.0, seed, 100, None)
    assert len(due) == 100 and due[-1] == pytest.approx(25)


def test_a_schedule_ends_with_its_duration_and_is_the_same_for_a_seed() -> None:
    due = scheduled(50.0, 1.0, 3, None, 10.0)
    assert max(due) <= 10 and len(due) == pytest.approx(500, rel=0.2)
    assert due == scheduled(50.0, 1.0, 3, None, 10.0) != scheduled(50.0, 1.0, 4, None, 10.0)
