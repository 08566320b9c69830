"""Several engines as one, against real mock-engine processes that are killed, stopped, drained and started again."""

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from gateway.engine.images import image_to
from gateway.engine.interface import EngineUnavailable
from gateway.engine.replica import Turn
from gateway.engine.replicas import Replicas
from gateway.errors import Kind, RequestError
from jaxengine.architecture.picture import PictureShape
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import CRASH, CRASH_LATER, continuation
from tests.gateway.engine.replica_processes import Fleet, fleet
from tests.processes import PATIENCE, ask, collect, until

STEP = "--step-seconds=0.005"
LONG = 400  # tokens: two seconds


async def begun(engines: Fleet, prompt: list[int], tokens: int = LONG) -> "asyncio.Task[tuple[list[int], object]]":
    """A request that has been answered its first tokens."""
    before = sum(engines.generated)
    task = asyncio.create_task(collect(engines.replicas, ask(prompt, tokens)))
    await until(lambda: sum(engines.generated) > before)
    return task


async def test_requests_spread_over_the_replicas(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP) as engines:
        answers = [asyncio.create_task(collect(engines.replicas, ask([n, 7], 50))) for n in range(1, 33)]
        await until(lambda: engines.load(0) + engines.load(1) == 32)
        assert (engines.load(0), engines.load(1)) == (16, 16)
        for n, (ids, last) in enumerate(await asyncio.gather(*answers), 1):
            assert ids == continuation([n, 7], 50)
            assert isinstance(last, pb.RequestEvent) and last.finish == pb.LENGTH


@pytest.mark.parametrize("seed", range(3))
async def test_a_killed_replicas_requests_go_on_with_the_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with fleet(tmp_path, 2, STEP) as engines:
        lengths = [chance.randint(1, 200) for _ in range(16)]
        tasks = [
            asyncio.create_task(collect(engines.replicas, ask([n], length))) for n, length in enumerate(lengths, 1)
        ]
        await asyncio.sleep(chance.uniform(0, 0.5))
        engines.kill(seed % 2)
        answers = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        assert engines.state(seed % 2) == "lost" and engines.replicas.ready
        assert engines.routes.moved.count("lost") == len(engines.routes.moved)
    for n, (length, (ids, last)) in enumerate(zip(lengths, answers, strict=True), 1):
        assert isinstance(last, pb.RequestEvent) and last.finish == pb.LENGTH
        assert ids == continuation([n], length)


async def test_without_resumption_they_end_in_one_clear_error(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1, STEP, resume=False) as engines:
        task = await begun(engines, [5])
        engines.kill(0)
        ids, error = await asyncio.wait_for(task, PATIENCE)
        assert isinstance(error, EngineUnavailable) and error.message == "the engine stopped"
        assert 0 < len(ids) < LONG and ids == continuation([5], LONG)[: len(ids)]


async def test_a_request_of_the_only_engine_waits_until_that_is_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1, STEP) as engines:
        task = await begun(engines, [5])
        engines.kill(0)
        await until(lambda: not engines.replicas.ready)
        with pytest.raises(EngineUnavailable):  # a new request is told to come again
            await anext(engines.replicas.generate(ask([6], 1)))
        engines.start_again(0)
        assert (await asyncio.wait_for(task, PATIENCE))[0] == continuation([5], LONG)


async def test_it_waits_no_longer_than_its_deadline(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1, STEP) as engines:
        task = asyncio.create_task(collect(engines.replicas, ask([5], 2000, timeout_seconds=1.5)))
        await until(lambda: engines.load(0) == 1)
        began = time.monotonic()
        engines.kill(0)
        ids, last = await asyncio.wait_for(task, PATIENCE)
        assert isinstance(last, pb.RequestEvent) and last.finish == pb.DEADLINE
        assert time.monotonic() - began < PATIENCE / 2 and ids == continuation([5], 2000)[: len(ids)]


async def test_one_that_has_not_begun_waits_no_longer_than_it_may_be_queued(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as engines:
        engines.engines[0].process.send_signal(signal.SIGSTOP)
        queued = asyncio.create_task(collect(engines.replicas, ask([6], 5, queue_timeout_seconds=1)))
        await asyncio.sleep(0.1)
        engines.kill(0)
        ids, last = await asyncio.wait_for(queued, PATIENCE)
        assert isinstance(last, pb.RequestEvent) and last.finish == pb.QUEUE_TIMEOUT and ids == []
        assert engines.routes.moved == ["lost"]


async def test_its_time_goes_on_while_it_moves(tmp_path: Path) -> None:
    """The second engine gets what is left, not all of it once more."""
    async with fleet(tmp_path, 2, "--step-seconds=0.02") as engines:
        began = time.monotonic()
        task = asyncio.create_task(collect(engines.replicas, ask([5], 2000, timeout_seconds=4)))
        await asyncio.sleep(3)
        engines.kill(engines.routes.routed[0][0])
        _, last = await asyncio.wait_for(task, PATIENCE)
        assert isinstance(last, pb.RequestEvent) and last.finish == pb.DEADLINE
        assert 3.8 < time.monotonic() - began < 6  # 7 if it had all of it again


@pytest.mark.parametrize("killer", [CRASH, CRASH_LATER])
async def test_a_request_that_kills_engines_is_given_up(tmp_path: Path, killer: int) -> None:
    """The others of those engines go on, although they moved together with it. One that kills later had a token of each
    engine: that behind its prompt.
    """
    async with fleet(tmp_path, 4, STEP) as engines:
        others = [await begun(engines, [n, n], 300) for n in range(1, 9)]
        with pytest.raises(RequestError, match="died again and again") as failed:
            async for _ in engines.replicas.generate(ask([killer], 100)):
                pass
        assert failed.value.kind is Kind.GENERATION
        assert sorted(engines.state(number) for number in range(4)) == ["lost", "lost", "lost", "ready"]
        for n, (ids, _) in enumerate(await asyncio.wait_for(asyncio.gather(*others), PATIENCE), 1):
            assert ids == continuation([n, n], 300)


async def test_a_request_that_outlives_many_engines_is_not(tmp_path: Path) -> None:
    """It got tokens of each of them, so it is not the cause."""
    async with fleet(tmp_path, 2, STEP) as engines:
        task = await begun(engines, [9], 1000)
        for _ in range(5):
            on = engines.routes.routed[-1][0]
            await until(lambda on=on: engines.load(on) == 1)  # type: ignore[misc]
            engines.kill(on)
            await until(lambda on=on: engines.state(on) == "lost")  # type: ignore[misc]
            engines.start_again(on)
            await until(lambda on=on: engines.state(on) == "ready")  # type: ignore[misc]
        assert (await asyncio.wait_for(task, PATIENCE))[0] == continuation([9], 1000)
        assert engines.routes.moved == ["lost"] * 5


async def test_a_stopped_replicas_requests_move_when_its_silence_is_noticed(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP, hang_limit=2.0) as engines:
        task = await begun(engines, [5], 1000)
        on = engines.routes.routed[0][0]
        engines.engines[on].process.send_signal(signal.SIGSTOP)
        assert (await asyncio.wait_for(task, PATIENCE))[0] == continuation([5], 1000)
        assert engines.routes.moved == ["lost"]
        engines.engines[on].process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("count", [1, 2])
async def test_an_engine_that_is_told_to_end_gets_nothing_new(tmp_path: Path, count: int) -> None:
    """It finishes what it has; what it refuses goes on elsewhere, or with it once it is back."""
    async with fleet(tmp_path, count, STEP) as engines:
        running = await begun(engines, [5], 200)
        on = engines.routes.routed[0][0]
        engines.engines[on].process.terminate()
        await asyncio.sleep(0.2)
        answers = [asyncio.create_task(collect(engines.replicas, ask([n], 3))) for n in range(1, 9)]
        await until(lambda: engines.state(on) == "lost")
        assert (await running)[0] == continuation([5], 200)
        engines.start_again(on)
        for n, (ids, _) in enumerate(await asyncio.wait_for(asyncio.gather(*answers), PATIENCE), 1):
            assert ids == continuation([n], 3)


async def test_a_closed_replica_finishes_what_it_has_and_takes_nothing_new(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP) as engines:
        task = await begun(engines, [5])
        on = engines.routes.routed[0][0]
        engines.turns[on] = Turn.CLOSED
        assert engines.state(on) == "draining" and engines.replicas.ready
        for n in range(1, 9):
            await collect(engines.replicas, ask([n], 2))
        assert {number for number, *_ in engines.routes.routed[1:]} == {1 - on}
        assert (await task)[0] == continuation([5], LONG) and engines.routes.moved == []
        engines.turns[1 - on] = Turn.CLOSED
        assert not engines.replicas.ready


async def test_a_cleared_replicas_requests_move_and_are_cancelled_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP) as engines:
        task = await begun(engines, [5], 600)
        on = engines.routes.routed[0][0]
        engines.turns[on] = Turn.CLEARED
        await until(lambda: engines.load(on) == 0 and engines.load(1 - on) == 1)
        assert engines.routes.moved == ["drained"] and engines.generated[on] < 600
        assert (await task)[0] == continuation([5], 600)


async def test_what_is_cleared_moves_although_requests_do_not_outlive_a_death(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP, resume=False) as engines:
        task = await begun(engines, [5])
        engines.turns[engines.routes.routed[0][0]] = Turn.CLEARED
        assert (await asyncio.wait_for(task, PATIENCE))[0] == continuation([5], LONG)


async def test_what_is_cleared_waits_until_a_replica_is_open(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1, STEP) as engines:
        task = await begun(engines, [5])
        engines.turns[0] = Turn.CLEARED
        await until(lambda: engines.load(0) == 0)
        engines.turns[0] = Turn.OPEN
        assert (await asyncio.wait_for(task, PATIENCE))[0] == continuation([5], LONG)


async def test_closing_ends_running_and_waiting_requests(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2, STEP) as engines:
        waiting = await begun(engines, [5])
        on = engines.routes.routed[0][0]
        engines.turns[1 - on] = Turn.CLOSED
        engines.kill(on)
        await until(lambda: engines.state(on) == "lost")
        engines.replicas.close("the server is shutting down")
        _, error = await asyncio.wait_for(waiting, PATIENCE)
        assert isinstance(error, EngineUnavailable) and error.message == "the server is shutting down"


async def test_adapters_of_no_engine_are_an_error(tmp_path: Path) -> None:
    replicas = Replicas([tmp_path / "0.sock", tmp_path / "1.sock"], "token")
    for call in (replicas.adapters.refresh(), replicas.adapters.unload("a")):
        with pytest.raises(EngineUnavailable):
            await call


async def test_a_prompt_goes_where_its_beginning_is_cached(tmp_path: Path) -> None:
    flags = ("--page-size=4", "--prefix-pages=64")
    prompts = [[n, *range(1, 40)] for n in range(1, 9)]
    async with fleet(tmp_path, 2, *flags) as engines:
        for prompt in prompts:
            await collect(engines.replicas, ask(prompt, 1))
        first = {tuple(prompt): number for prompt, (number, *_) in zip(prompts, engines.routes.routed, strict=True)}
        assert set(first.values()) == {0, 1}
        await asyncio.sleep(0.1)
        del engines.routes.routed[:]
        for prompt in prompts:
            await collect(engines.replicas, ask([*prompt, 99], 1))
        assert engines.routes.routed == [(first[tuple(prompt)], "prefix", 40) for prompt in prompts]


async def test_a_prompt_goes_where_its_pictures_are_cached(tmp_path: Path) -> None:
    """The ids are the same, whatever the picture."""
    flags = ("--page-size=4", "--prefix-pages=64", "--image-token-id=300")
    shape, patches = PictureShape(((1, 8),), 8, 8), bytes(8 * 12 * 4)
    pictures = [image_to(bytes([n]) * 32, 1, 8, shape, patches, "float32") for n in range(8)]
    asked = [ask([1, *[300] * 8, *range(1, 32)], 1, images=[picture]) for picture in pictures]
    async with fleet(tmp_path, 2, *flags) as engines:
        for request in asked:
            await collect(engines.replicas, request)
        first = [number for number, *_ in engines.routes.routed]
        assert set(first) == {0, 1} and all(cached == 0 for *_, cached in engines.routes.routed)
        await asyncio.sleep(0.1)
        del engines.routes.routed[:]
        for request in asked:
            request.prompt.append(99)
            await collect(engines.replicas, request)
        assert engines.routes.routed == [(number, "prefix", 40) for number in first]


async def test_a_cache_that_is_gone_draws_nobody(tmp_path: Path) -> None:
    prompt = [*range(1, 41)]
    async with fleet(tmp_path, 2, "--page-size=4", "--prefix-pages=64") as engines:
        await collect(engines.replicas, ask(prompt, 1))
        on = engines.routes.routed[0][0]
        engines.kill(on)
        await until(lambda: engines.state(on) == "lost")
        engines.start_again(on)
        await until(lambda: engines.state(on) == "ready")
        await collect(engines.replicas, ask(prompt, 1))
        assert engines.routes.routed[-1][1:] == ("hash", 0)
