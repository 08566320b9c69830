"""Refusals are delayed while other requests are being answered, so that they cannot take all of the event loop."""

import asyncio
import time
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.http import refusal_pacing
from gateway.http.refusal_pacing import PacedRefusals

RATE, BURST = 1000, 10


@pytest.fixture(autouse=True)
def rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick, so that the tests are."""
    monkeypatch.setattr(refusal_pacing, "PER_SECOND", RATE)
    monkeypatch.setattr(refusal_pacing, "BURST", BURST)


async def answered(status: int, count: int, *, busy: bool = True, at_once: bool = False) -> float:
    """Seconds until so many requests have their answer, one after another unless `at_once`."""
    app = PacedRefusals(Response(status_code=status), lambda: busy)

    async def ask() -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {"type": "http"}
        await app(scope, never, send)
        assert sent[0]["status"] == status

    began = time.perf_counter()
    if at_once:
        await asyncio.gather(*(ask() for _ in range(count)))
    else:
        for _ in range(count):
            await ask()
    return time.perf_counter() - began


async def never() -> Message:
    raise AssertionError("a response reads nothing")


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_clients_that_are_refused_again_and_again_slow_down(status: int) -> None:
    assert await answered(status, BURST + 100) >= 100 / RATE


async def test_those_refused_at_once_wait_in_line() -> None:
    assert await answered(400, BURST + 100, at_once=True) >= 100 / RATE


async def test_a_flood_from_many_waits_as_well_though_none_longer_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    longest, rate = 0.5, 50
    monkeypatch.setattr(refusal_pacing, "LONGEST", longest)
    monkeypatch.setattr(refusal_pacing, "PER_SECOND", rate)
    many = int(20 * longest * rate)
    assert longest <= await answered(400, many, at_once=True) < many / rate


async def test_while_it_waits_a_refusal_takes_nobodys_place() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        at_work.append(scope)
        await Response(status_code=400)(scope, receive, send)
        at_work.remove(scope)

    async def send(message: Message) -> None:
        assert not at_work

    at_work: list[Scope] = []
    for _ in range(BURST + 5):
        await PacedRefusals(refuse, lambda: True)({"type": "http"}, never, send)


@pytest.mark.parametrize(("status", "busy"), [(400, False), (200, True), (429, True), (499, True), (503, True)])
async def test_nobody_else_waits(monkeypatch: pytest.MonkeyPatch, status: int, busy: bool) -> None:
    monkeypatch.setattr(refusal_pacing, "PER_SECOND", 0.01)
    assert await answered(status, 100, busy=busy) < 1
