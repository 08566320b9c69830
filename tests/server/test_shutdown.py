"""SIGTERM with a real engine: what was accepted is finished, what comes too late is told when to return."""

import asyncio
import signal
from pathlib import Path

import httpx

from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import stream
from tests.servers import descendants, serving

PROMPTS = ["The river", "quick brown", "user: where", "assistant:"]
NEW_TOKENS = 300


async def test_sigterm_lets_accepted_streams_finish_exactly_and_turns_new_ones_away(
    tiny_model: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", *TINY_OPTIONS) as server:
        await asyncio.to_thread(server.wait_ready)
        expected = [await stream(server.url, prompt, NEW_TOKENS) for prompt in PROMPTS]
        family = [server.process.pid, *descendants(server.process.pid)]
        running = [asyncio.create_task(stream(server.url, prompt, NEW_TOKENS)) for prompt in [*PROMPTS, *PROMPTS]]
        while server.gauges()["tgi_batch_current_size"] < len(running):
            await asyncio.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, 503)
        late = httpx.post(server.url + "/v1/completions", json={"prompt": "late"})
        assert late.status_code == 503 and 1 <= int(late.headers["retry-after"]) <= 60
        assert await asyncio.wait_for(asyncio.gather(*running), 30) == [*expected, *expected]
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        server.assert_gone(family)
