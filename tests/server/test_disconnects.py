"""Clients that go away, in numbers: nothing of theirs stays behind."""

import asyncio
import random
from pathlib import Path

import httpx

from tests.server.streams import stream
from tests.servers import Server
from tests.tiny import reference_greedy, tokenizer

STREAMS, AT_ONCE, NEW_TOKENS = 120, 12, 1500


async def leave(url: str, inputs: str, after: int) -> None:
    """Read `after` events of a long stream, then close the connection; after 0, before the answer began."""
    body = {"inputs": inputs, "parameters": {"max_new_tokens": NEW_TOKENS}}
    async with httpx.AsyncClient(timeout=60) as http:
        if not after:
            request = asyncio.create_task(http.post(url + "/generate", json=body))
            await asyncio.sleep(0.02)
            request.cancel()
            return
        async with http.stream("POST", url + "/generate_stream", json=body) as answer:
            async for line in answer.aiter_lines():
                after -= bool(line)
                if not after:
                    return


async def idle(server: Server) -> dict[str, float]:
    """The gauges once nothing runs or waits. Fails after 5 s."""
    for _ in range(100):
        gauges = server.gauges()
        if not gauges["tgi_batch_current_size"] and not gauges["tgi_queue_size"]:
            return gauges
        await asyncio.sleep(0.05)
    raise AssertionError("requests still run whose clients have left")


def pool(gauges: dict[str, float]) -> float:
    """Pages that are free or could be: all of them, when nothing runs."""
    return sum(gauges[f'textgen_kv_pages{{state="{state}"}}'] for state in ("free", "cached"))


async def test_a_storm_of_disconnects_leaks_no_page_and_wastes_few_tokens(tiny: Server, tiny_model: Path) -> None:
    golden = reference_greedy(tiny_model, tokenizer().encode("def add("), 40)
    assert list((await stream(tiny.url, "def add(", 40)).ids) == golden
    before = await idle(tiny)
    draw, permits = random.Random(7), asyncio.Semaphore(AT_ONCE)

    async def visit(number: int) -> None:
        async with permits:
            await leave(tiny.url, f"def add {number}", draw.choice((0, 1, 5, 20, 60)))

    await asyncio.wait_for(asyncio.gather(*map(visit, range(STREAMS))), 60)
    after = await idle(tiny)
    assert after['textgen_kv_pages{state="used"}'] == 0 and pool(after) == pool(before)
    generated = after["textgen_generated_tokens_total"] - before["textgen_generated_tokens_total"]
    assert generated < STREAMS * NEW_TOKENS / 5
    assert list((await stream(tiny.url, "def add(", 40)).ids) == golden
