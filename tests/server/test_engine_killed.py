"""kill -9 and SIGSTOP of engines under streams: no stream gets a wrong token, none ends early, none hangs."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.processes import PATIENCE, gone
from tests.server.chaos import HANG_SECONDS, OPTIONS, PROMPTS, centile, disturb
from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import Outcome, stream
from tests.servers import Server, serving
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

KILLS = 4
LENGTHS = range(20, 20 + 8 * 70, 70)  # 1 to 2 ms a step: some streams end before the kill, some cannot
KILL_AFTER = (0.03, 0.6)  # seconds


async def test_streams_go_on_with_the_other_replica(tiny_model: Path, tmp_path: Path) -> None:
    """By hand with 50 kills and 10 stops: `python -m tests.server.chaos`."""
    flags = (f"--model-id={tiny_model}", "--max-batch-size=16", "--max-batch-prefill-tokens=64", *OPTIONS)
    with serving(tmp_path, *flags) as server:
        report = await disturb(server, kills=4, stops=1)
        moved = server.gauges()['textgen_request_moves_total{cause="lost"}']
    assert moved >= 5 and len(report.pauses) >= 4 and report.stalls
    assert centile(report.stalls, 50) < HANG_SECONDS + 5


async def test_streams_of_the_only_engine_go_on_when_it_is_back(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", *TINY_OPTIONS) as server:
        assert await kill_again_and_again(server, tiny_model) == 0
        assert server.gauges()['textgen_request_moves_total{cause="lost"}'] >= KILLS


async def test_without_resumption_they_are_exact_or_end_in_one_error(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", "--resume-requests=false", *TINY_OPTIONS) as server:
        assert await kill_again_and_again(server, tiny_model) >= KILLS, "the kills came too late to break a stream"


async def kill_again_and_again(server: Server, model: Path) -> int:
    """How many streams failed, of eight at each kill."""
    draw, failed = random.Random(0), 0
    await asyncio.to_thread(server.wait_ready)
    whole = await all_streams(server)
    assert_as_transformers_says(model, whole)
    for _ in range(KILLS):
        running = asyncio.create_task(all_streams(server))
        await asyncio.sleep(draw.uniform(*KILL_AFTER))
        engine = server.engine_pid()
        os.kill(engine, signal.SIGKILL)
        assert gone(engine) and server.status("/health/live") == 200
        failed += exact_or_failed(await asyncio.wait_for(running, 2 * PATIENCE), whole)
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
