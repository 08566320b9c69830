"""One model over several machines: the texts are those of one machine, and whatever happens to one of them, no text is
lost, none is wrong, and nobody hangs.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxengine.group.wire import Frame, Kind, packed_arrays, written
from jaxengine.telemetry.logs import USAGE
from tests.processes import PATIENCE, gone
from tests.server.group import CPU_DEVICES, GRACE_SECONDS, HANG_SECONDS, Group, serving_group, stopped
from tests.server.streams import Outcome, stream
from tests.servers import serving
from tests.tiny import reference_greedy, tokenizer, write_tiny

pytestmark = pytest.mark.slow

PROMPTS = ("the cat", "a dog and a bird that sing", "z", "one two three four five six seven")
LENGTHS = (50, 40, 60, 30)
SEEDED = {"do_sample": True, "temperature": 1.0, "top_k": 40, "repetition_penalty": 1.1, "seed": 7}
NOTICED = 5.0  # seconds until an end, or damage, is noticed: 2 on an idle machine


async def streams(url: str) -> list[Outcome]:
    """Greedy and seeded, at once."""
    kinds = ({}, SEEDED, {}, SEEDED)
    asked = zip(PROMPTS, LENGTHS, kinds, strict=True)
    return await asyncio.gather(*(stream(url, prompt, length, **kind) for prompt, length, kind in asked))


def assert_as_transformers_says(model: Path, outcomes: list[Outcome]) -> None:
    for number in (0, 2):
        expected = reference_greedy(model, tokenizer().encode(PROMPTS[number]), LENGTHS[number])
        ids = list(outcomes[number].ids)  # fewer if the model ends its text
        assert ids == expected[: len(ids)] and len(ids) > 20


@pytest.fixture(scope="module")
def group(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with serving_group(tmp_path_factory.mktemp("group"), 2, f"--model-id={tiny_model}") as group:
        group.wait_ready()
        yield group


@pytest.fixture(scope="module")
def whole(group: Group, tiny_model: Path) -> list[Outcome]:
    """What is answered when nothing happens."""
    outcomes = asyncio.run(streams(group.leader.url))
    assert all(each.error is None for each in outcomes)
    assert_as_transformers_says(tiny_model, outcomes)
    return outcomes


async def test_four_machines_of_two_devices_answer_as_transformers_does(tmp_path: Path) -> None:
    model = write_tiny(
        tmp_path, "llama2_gqa", num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512
    )
    with serving_group(tmp_path, 4, f"--model-id={model}") as four:
        await asyncio.to_thread(four.wait_ready)
        assert_as_transformers_says(model, await streams(four.leader.url))
        assert "on 8 x cpu" in four.leader.log.read_text()


async def broken(group: Group, whole: list[Outcome], do: Callable[[], object], line: str, bound: float) -> float:
    """Under streams `do` something that breaks the group: that is noticed, as a log says, and every stream is whole.

    Returns the seconds until it was noticed.
    """
    running = asyncio.create_task(streams(group.leader.url))
    await asyncio.sleep(0.15)
    group.mark()
    done = do()
    if done is not None:
        assert await asyncio.to_thread(done.wait, PATIENCE), "nothing broke"  # type: ignore[attr-defined]
    seconds = await asyncio.to_thread(group.wait_for_line, line)
    assert seconds < bound, group.logs()
    assert await asyncio.wait_for(running, 2 * PATIENCE) == whole
    await asyncio.to_thread(group.wait_ready)
    return seconds


def kill(pid: int, number: int) -> None:
    os.kill(pid, number)


async def test_a_follower_s_engine_is_killed(group: Group, whole: list[Outcome]) -> None:
    engine = group.followers[0].engine_pid()
    await broken(group, whole, lambda: kill(engine, signal.SIGKILL), "machine 1 has left the group: ", NOTICED)


async def test_the_leader_s_engine_is_killed(group: Group, whole: list[Outcome]) -> None:
    engine = group.leader.engine_pid()
    await broken(group, whole, lambda: kill(engine, signal.SIGKILL), "the engine ended with code -9", NOTICED)


async def test_a_follower_s_engine_is_stopped(group: Group, whole: list[Outcome]) -> None:
    engine = group.followers[0].engine_pid()
    line, bound = "machine 1 has shown no life for [3-9]|the engine has been silent for", HANG_SECONDS + NOTICED
    assert await broken(group, whole, lambda: kill(engine, signal.SIGSTOP), line, bound) > HANG_SECONDS / 2
    assert gone(engine)


async def test_the_leader_s_engine_is_stopped(group: Group, whole: list[Outcome]) -> None:
    engine = group.leader.engine_pid()
    line, bound = "machine 0 has shown no life for [3-9]|the engine has been silent for", HANG_SECONDS + NOTICED
    await broken(group, whole, lambda: kill(engine, signal.SIGSTOP), line, bound)
    assert gone(engine)


async def test_a_launch_is_damaged_on_its_way(group: Group, whole: list[Outcome]) -> None:
    def damaged(frame: Frame) -> bytes:
        data = bytearray(written(frame))
        data[-9] ^= 4
        return bytes(data)

    breaking = lambda: group.wire.break_once(Kind.LAUNCH, damaged)  # noqa: E731
    await broken(group, whole, breaking, "a frame was damaged on its way", NOTICED)


async def test_a_launch_is_lost(group: Group, whole: list[Outcome]) -> None:
    breaking = lambda: group.wire.break_once(Kind.LAUNCH, lambda _: None)  # noqa: E731
    await broken(group, whole, breaking, r"of executable \d+ behind launch", NOTICED)


async def test_a_launch_comes_twice(group: Group, whole: list[Outcome]) -> None:
    breaking = lambda: group.wire.break_once(Kind.LAUNCH, lambda frame: 2 * written(frame))  # noqa: E731
    await broken(group, whole, breaking, r"of executable \d+ behind launch", NOTICED)


async def test_a_follower_samples_other_tokens(group: Group, whole: list[Outcome]) -> None:
    """As it would if its GPU were broken: here what it compares with is another's."""

    def other(frame: Frame) -> bytes:
        import numpy as np

        return written(Frame(frame.kind, frame.number, packed_arrays([np.full(1, -1, np.int32)])))

    breaking = lambda: group.wire.break_once(Kind.SAMPLED, other)  # noqa: E731
    await broken(group, whole, breaking, r"it has sampled \[\d+\], and the leader \[-1\]", NOTICED)


async def test_the_wire_falls_silent(group: Group, whole: list[Outcome]) -> None:
    """Neither side is told that the other hears nothing. Which one notices first is chance."""

    def cut() -> None:
        group.wire.change = lambda _: None

    line, bound = "machine [01] has shown no life for [3-9]|the engine has been silent for", HANG_SECONDS + NOTICED
    group.mark()
    running = asyncio.create_task(broken(group, whole, cut, line, bound))
    await asyncio.to_thread(group.wait_for_line, line)
    group.wire.change = written
    await running


async def test_a_slow_wire_costs_time_and_nothing_else(group: Group, whole: list[Outcome]) -> None:
    group.wire.delay, ready = 0.004, group.leader.log.read_text().count(" ready: ")
    try:
        began = time.monotonic()
        assert await streams(group.leader.url) == whole
        assert time.monotonic() - began > 0.004 * 2 * max(LENGTHS)
    finally:
        group.wire.delay = 0.0
    assert group.leader.log.read_text().count(" ready: ") == ready


async def test_all_machines_are_told_to_stop_at_once_and_streams_end_whole(tiny_model: Path, tmp_path: Path) -> None:
    """As Kubernetes does. The machine that follows has no requests, but is needed for them."""
    with serving_group(tmp_path, 2, f"--model-id={tiny_model}") as group:
        await asyncio.to_thread(group.wait_ready)
        whole = await streams(group.leader.url)
        running = asyncio.create_task(streams(group.leader.url))
        await asyncio.sleep(0.15)
        began = time.monotonic()
        for each in (group.followers[0], group.leader):
            each.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running, PATIENCE) == whole
        codes = [await asyncio.to_thread(each.process.wait, PATIENCE) for each in (group.leader, group.followers[0])]
        assert codes == [0, 0] and time.monotonic() - began < GRACE_SECONDS


def test_a_machine_that_stops_for_good_is_waited_for(tiny_model: Path, tmp_path: Path) -> None:
    """It follows on for the grace time, in case that machine 0 stops too; a second signal ends that. Waiting is not
    counted as a start that takes too long.
    """
    with serving_group(tmp_path, 2, f"--model-id={tiny_model}", "--startup-timeout=20") as group:
        group.wait_ready()
        follower = group.followers[0]
        follower.process.send_signal(signal.SIGTERM)
        group.wait_for_line("stopping with machine 0, or after 15 s")
        assert group.leader.status() == 200
        assert stopped(follower.process) == 0
        group.wait_for_line("machine 1 has left the group")
        time.sleep(22)
        assert "was not ready after" not in group.logs()
        assert group.leader.status() == 503 and group.leader.status("/health/live") == 200


def test_a_group_without_its_leader_stops_in_order(tiny_model: Path, tmp_path: Path) -> None:
    with serving_group(tmp_path, 2, f"--model-id={tiny_model}") as group:
        group.wait_ready()
        group.leader.stop()
        group.wait_for_line("machine 0 has left")
        assert stopped(group.followers[0].process) == 0


def test_an_address_of_another_machine_ends_the_start(tiny_model: Path, tmp_path: Path) -> None:
    flags = (f"--model-id={tiny_model}", "--nnodes=2", "--master-addr=203.0.113.1")
    with serving(tmp_path, *flags, env=CPU_DEVICES) as server:
        assert server.process.wait(PATIENCE) == USAGE
        assert "cannot listen on --master-addr 203.0.113.1 port 29500: Cannot assign" in server.log.read_text()
