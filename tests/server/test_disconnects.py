"""A thousand clients that leave: none of their pages or requests stays behind."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.processes import PATIENCE
from tests.raw_http import Connection
from tests.server.streams import stream
from tests.servers import Server
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

LEAVERS, AT_ONCE, NEW_TOKENS = 1000, 24, 1500  # of which the tiny server runs 8 at a time
POINTS = (None, 0, 1, 3, 10)  # events read before leaving; None: not even the head


async def leave(url: str, inputs: str, events: int | None) -> None:
    """Ask for a long answer, as a stream if some events are to be read, and close the connection in the middle."""
    body = {"inputs": inputs, "parameters": {"max_new_tokens": NEW_TOKENS}}
    connection = await Connection.send(url, "/generate" if events is None else "/generate_stream", body)
    if events is None:
        await asyncio.sleep(0.005)
    else:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")), head
        for _ in range(events if b" 200 " in head else 0):
            await connection.reader.readuntil(b"\n\n")
    connection.leave()


async def idle(server: Server) -> dict[str, float]:
    """The gauges once nothing runs or waits. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        gauges = server.gauges()
        if not gauges["tgi_batch_current_size"] and not gauges["tgi_queue_size"]:
            return gauges
        await asyncio.sleep(0.05)
    raise AssertionError("requests still run whose clients have left")


def pool(gauges: dict[str, float]) -> float:
    """Pages that are free or cached: all pages, when nothing runs."""
    return sum(gauges[f'textgen_kv_pages{{engine="0",state="{state}"}}'] for state in ("free", "cached"))


async def test_a_thousand_clients_that_leave_leak_no_page_and_waste_few_tokens(
    server: Server, tiny_model: Path
) -> None:
    golden = reference_greedy(tiny_model, tokenizer().encode("def add("), 40)
    assert list((await stream(server.url, "def add(", 40)).ids) == golden
    before = await idle(server)
    draw, permits = random.Random(7), asyncio.Semaphore(AT_ONCE)

    async def leave_early(number: int) -> None:
        async with permits:
            await leave(server.url, f"def add {number}", draw.choice(POINTS))

    await asyncio.gather(*map(leave_early, range(LEAVERS)))
    after = await idle(server)
    assert after['textgen_kv_pages{engine="0",state="used"}'] == 0 and pool(after) == pool(before)
    assert after["tgi_request_count"] - before["tgi_request_count"] == LEAVERS
    generated = (
        after['textgen_generated_tokens_total{engine="0"}'] - before['textgen_generated_tokens_total{engine="0"}']
    )
    assert generated < LEAVERS * NEW_TOKENS / 5  # how few depends on how late a busy machine sees them leave: 1/19 once
    assert list((await stream(server.url, "def add(", 40)).ids) == golden
