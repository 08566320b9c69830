"""SIGTERM with a real engine: accepted requests are finished, later ones are told when to return."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import Outcome, stream
from tests.servers import descendants, serving

pytestmark = pytest.mark.slow

PROMPTS = ["The river", "quick brown", "user: where", "assistant:"]
NEW_TOKENS = 300


async def test_sigterm_lets_accepted_streams_finish_exactly_and_turns_new_ones_away(
    tiny_model: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", "--engine-hang-timeout=600", *TINY_OPTIONS) as server:
        await asyncio.to_thread(server.wait_ready)
        expected = [await stream(server.url, prompt, NEW_TOKENS) for prompt in PROMPTS]
        family = [server.process.pid, *descendants(server.process.pid)]
        running = await asyncio.gather(*(begin(server.url, prompt) for prompt in [*PROMPTS, *PROMPTS]))
        os.kill(server.engine_pid(), signal.SIGSTOP)  # so that all still run when the drain begins
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, 503)
        late = httpx.post(server.url + "/v1/completions", json={"prompt": "late"}, timeout=PATIENCE)
        assert late.status_code == 503 and 1 <= int(late.headers["retry-after"]) <= 60
        os.kill(server.engine_pid(), signal.SIGCONT)
        assert await asyncio.wait_for(asyncio.gather(*running), PATIENCE) == [*expected, *expected]
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        server.assert_gone(family)


async def begin(url: str, prompt: str) -> "asyncio.Task[Outcome]":
    """Start a stream, and wait for its first token."""
    begun = asyncio.Event()
    task = asyncio.create_task(stream(url, prompt, NEW_TOKENS, begun))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    return task
