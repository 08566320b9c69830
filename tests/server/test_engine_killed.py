"""kill -9 of the engine under eight streams, twelve times: no stream gets a wrong token, none hangs."""

import asyncio
import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import PATIENCE, gone
from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import Outcome, stream
from tests.servers import Server, serving
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

SERVERS, KILLS = 2, 6  # kills of each
PROMPTS = [
    "The river", "quick brown", "def add(", "user: where", "over the lazy", "assistant:", "rivers do", "return a",
]  # fmt: skip
LENGTHS = range(20, 20 + 8 * 70, 70)  # 1 to 2 ms a step: some streams end before the kill, some cannot
KILL_AFTER = (0.03, 0.6)  # seconds


async def test_streams_of_a_killed_engine_are_exact_or_end_in_one_error_and_it_comes_back(
    tiny_model: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        servers = []
        for number in range(SERVERS):
            (directory := tmp_path / str(number)).mkdir()
            servers.append(stack.enter_context(serving(directory, f"--model-id={tiny_model}", *TINY_OPTIONS)))
        failed = await asyncio.gather(*(kill_again_and_again(*each, tiny_model) for each in enumerate(servers)))
    assert sum(failed) >= SERVERS * KILLS, "the kills came too late to break a stream"


async def kill_again_and_again(seed: int, server: Server, model: Path) -> int:
    """How many streams failed, of eight at each kill."""
    draw, failed = random.Random(seed), 0
    await asyncio.to_thread(server.wait_ready)
    whole = await all_streams(server)
    await asyncio.to_thread(assert_as_transformers_says, model, whole)  # the other server has its own deadlines
    for _ in range(KILLS):
        running = asyncio.create_task(all_streams(server))
        await asyncio.sleep(draw.uniform(*KILL_AFTER))
        engine = server.engine_pid()
        os.kill(engine, signal.SIGKILL)
        failed += exact_or_failed(await asyncio.wait_for(running, PATIENCE), whole)
        assert gone(engine) and server.status("/health/live") == 200
        await asyncio.to_thread(server.wait_ready)
        assert await stream(server.url, PROMPTS[0], LENGTHS[0]) == whole[0]
    assert server.gauges()['textgen_engine_restarts_total{cause="died",engine="0"}'] == KILLS
    return failed


async def all_streams(server: Server) -> list[Outcome]:
    return await asyncio.gather(*(stream(server.url, *each) for each in zip(PROMPTS, LENGTHS, strict=True)))


def assert_as_transformers_says(model: Path, outcomes: list[Outcome]) -> None:
    for prompt, outcome in list(zip(PROMPTS, outcomes, strict=True))[-2:]:
        assert outcome.error is None
        assert list(outcome.ids[:60]) == reference_greedy(model, tokenizer().encode(prompt), 60)


def exact_or_failed(outcomes: list[Outcome], whole: list[Outcome]) -> int:
    """How many streams ended in an error. Fails if one has a missing, extra or wrong token."""
    for outcome, expected in zip(outcomes, whole, strict=True):
        if outcome.error is None:
            assert outcome == expected
        else:
            assert outcome.ids == expected.ids[: len(outcome.ids)]
            assert outcome.error.keys() == {"error", "error_type"}
    return sum(outcome.error is not None for outcome in outcomes)
