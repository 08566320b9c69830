"""The gateway's end of the wire, against real mock-engine processes that are killed, stopped and restarted."""

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from gateway.engine.client import EngineClient
from gateway.engine.event_buffer import EventBuffer
from gateway.engine.interface import EngineUnavailable
from gateway.engine.listener import EngineListener
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import CRASH, HANG, continuation
from tests.processes import PATIENCE, ask, collect, connected, running_engine, until

STEP = "--step-seconds=0.002"
LIMIT = 3.0  # seconds: six heartbeats, so that a busy machine is not taken for a stuck engine


class Recorder(EngineListener):
    """Keeps what it hears of the engine: "prepare mock/model", "ready", "lost", "hung"."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def prepare(self, description: pb.Description) -> None:
        self.heard.append(f"prepare {description.model_id}")

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        self.heard.append("ready")

    def engine_hung(self, engine: int) -> None:
        self.heard.append("hung")

    def engine_lost(self, engine: int) -> None:
        self.heard.append("lost")

    @property
    def hung(self) -> bool:
        return "hung" in self.heard


async def test_streams_are_exact_and_in_order(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine) as client:
            answers = await asyncio.gather(*(collect(client, ask([n, 3], 300)) for n in range(1, 65)))
    for n, (ids, last) in enumerate(answers, 1):
        assert ids == continuation([n, 3], 300)
        assert last.finish == pb.LENGTH


@pytest.mark.parametrize("seed", range(4))
async def test_every_stream_of_a_killed_engine_ends_exact_or_in_one_clear_error(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with running_engine(tmp_path, STEP) as engine:
        async with connected(engine, hang_limit=1e6) as client:  # so that silence is never noticed
            lengths = [chance.randint(1, 200) for _ in range(16)]
            tasks = [asyncio.create_task(collect(client, ask([n], length))) for n, length in enumerate(lengths, 1)]
            await asyncio.sleep(chance.uniform(0, 0.3))
            engine.process.kill()
            answers = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)  # 0.02 s on an idle machine
            assert not client.ready
    for n, (length, (ids, last)) in enumerate(zip(lengths, answers, strict=True), 1):
        whole = continuation([n], length)
        if isinstance(last, EngineUnavailable):
            assert ids == whole[: len(ids)] and 1 <= last.retry_after <= 60
        else:
            assert ids == whole


async def test_requests_to_an_engine_that_is_not_there_fail_at_once_with_advice(tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "nothing.sock", "token")
    running = asyncio.create_task(client.run())
    ids, error = await asyncio.wait_for(collect(client, ask([1], 1)), PATIENCE)
    assert ids == [] and isinstance(error, EngineUnavailable) and 1 <= error.retry_after <= 60
    assert client.description is None and not client.ready and client.last_step_age == 0
    running.cancel()


async def test_it_reconnects_when_the_engine_is_back(tmp_path: Path) -> None:
    with running_engine(tmp_path) as first:
        async with connected(first) as client:
            first.process.kill()
            await until(lambda: not client.ready)
            with running_engine(tmp_path, token=first.token):
                await until(lambda: client.ready)
                assert (await collect(client, ask([5], 10)))[0] == continuation([5], 10)


async def test_an_engine_that_stops_is_noticed_by_its_silence(tmp_path: Path) -> None:
    silences: list[float] = []  # seconds

    class Listener(EngineListener):
        def engine_hung(self, engine: int) -> None:
            silences.append(client.last_step_age)

    with running_engine(tmp_path, STEP) as engine:
        async with connected(engine, hang_limit=LIMIT, listeners=[Listener()]) as client:
            stream = asyncio.create_task(collect(client, ask([5], 2000)))
            await until(lambda: client.stats.running == 1)
            engine.process.send_signal(signal.SIGSTOP)
            ids, error = await asyncio.wait_for(stream, PATIENCE)
            assert isinstance(error, EngineUnavailable)
            assert ids == continuation([5], 2000)[: len(ids)]
            assert silences[0] > 0.9 * LIMIT
        engine.process.send_signal(signal.SIGCONT)


async def test_a_step_that_never_ends_is_a_hang_although_grpc_still_answers(tmp_path: Path) -> None:
    listener = Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, hang_limit=LIMIT, listeners=[listener]) as client:
            _, error = await asyncio.wait_for(collect(client, ask([HANG], 5)), PATIENCE)
            assert isinstance(error, EngineUnavailable) and listener.hung
            assert engine.process.poll() is None


async def test_deadlines_that_pass_during_a_step_that_never_ends_do_not_hide_the_hang(tmp_path: Path) -> None:
    listener = Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, hang_limit=LIMIT, listeners=[listener]) as client:
            stuck = asyncio.create_task(collect(client, ask([HANG], 5)))
            began, ends = time.monotonic(), []
            while not listener.hung and time.monotonic() - began < PATIENCE:
                _, last = await collect(client, ask([5], 5, timeout_seconds=0.2))
                ends.append(getattr(last, "finish", None))
            assert listener.hung and ends.count(pb.DEADLINE) > 1
            await stuck


async def test_an_idle_engine_is_never_taken_for_stuck(tmp_path: Path) -> None:
    listener = Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, hang_limit=LIMIT, listeners=[listener]) as client:
            await asyncio.sleep(1.5 * LIMIT)
            assert client.ready and not listener.hung
            assert client.last_step_age < LIMIT


async def test_a_gateway_that_was_stalled_itself_does_not_blame_the_engine(tmp_path: Path) -> None:
    listener = Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, hang_limit=LIMIT, listeners=[listener]) as client:
            time.sleep(1.5 * LIMIT)  # blocks the event loop on purpose
            await asyncio.sleep(0.3)
            assert client.ready and not listener.hung


async def test_closing_a_stream_cancels_the_request(tmp_path: Path) -> None:
    with running_engine(tmp_path, STEP) as engine:
        async with connected(engine) as client:
            streams = [client.generate(ask([n], 2000)) for n in range(1, 9)]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
            await until(lambda: client.stats.running == 0 and client.stats.pages_used == 0)


async def test_a_beam_search_is_answered_by_one_event(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine) as client:
            request = ask([5, 3], 10)
            request.beam_search.CopyFrom(pb.BeamSearch(width=4, answers=2, length_penalty=1))
            [event] = [event async for event in client.generate(request)]
    assert (event.finish, len(event.tokens), event.HasField("prompt")) == (pb.LENGTH, 0, True)
    whole = continuation([5, 3], 11)
    assert [[token.id for token in beam.tokens] for beam in event.beams] == [whole[:10], whole[1:]]
    assert [(beam.finish, beam.score) for beam in event.beams] == [(pb.LENGTH, -0.25), (pb.LENGTH, -0.5)]


async def test_leaving_a_beam_search_cancels_it(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with running_engine(tmp_path, f"--hold={hold}") as engine:
        async with connected(engine) as client:
            hold.touch()
            request = ask([5], 10)
            request.beam_search.CopyFrom(pb.BeamSearch(width=4, length_penalty=1))
            waiting = asyncio.create_task(collect(client, request))
            await until(lambda: client.stats.running == 1)
            waiting.cancel()
            await until(lambda: client.stats.running == 0)


async def test_a_crash_caused_by_one_request_is_an_error_for_it(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine) as client:
            ids, error = await asyncio.wait_for(collect(client, ask([CRASH], 5)), PATIENCE)
            assert ids == [] and isinstance(error, EngineUnavailable)


async def test_closing_the_client_ends_what_runs_with_the_reason(tmp_path: Path) -> None:
    with running_engine(tmp_path, STEP) as engine:
        async with connected(engine) as client:
            stream = asyncio.create_task(collect(client, ask([5], 2000)))
            await until(lambda: client.stats.running == 1)
            client.close("the server is shutting down")
            _, error = await asyncio.wait_for(stream, PATIENCE)
            assert str(error) == "the server is shutting down"
            _, error = await collect(client, ask([5], 5))
            assert str(error) == "the server is shutting down"


async def test_preparation_comes_before_readiness(tmp_path: Path) -> None:
    listener = Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, prepare=listener.prepare, listeners=[listener]):
            assert listener.heard == ["prepare mock/model", "ready"]


async def test_every_listener_is_told_the_same(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    with running_engine(tmp_path) as engine:
        async with connected(engine, listeners=[first, second]) as client:
            engine.process.kill()
            await until(lambda: not client.ready)
    assert first.heard == second.heard == ["ready", "lost"]


async def test_what_preparation_raises_ends_the_client(tmp_path: Path) -> None:
    async def prepare(description: pb.Description) -> None:
        raise ValueError("tokenizer.json: broken")

    with running_engine(tmp_path) as engine:
        client = EngineClient(engine.path, engine.token, prepare=prepare)
        with pytest.raises(ValueError, match="broken"):
            await asyncio.wait_for(client.run(), PATIENCE)


async def test_a_slow_reader_gets_one_merged_event() -> None:
    buffer = EventBuffer()
    for number in range(1000):
        buffer.put(pb.RequestEvent(id=1, tokens=[pb.Token(id=number)]))
    buffer.put(pb.RequestEvent(id=1, finish=pb.LENGTH))
    event = await buffer.take()
    assert [token.id for token in event.tokens] == list(range(1000))
    assert event.finish == pb.LENGTH


async def test_what_came_before_a_failure_is_still_delivered() -> None:
    buffer = EventBuffer()
    buffer.put(pb.RequestEvent(id=1, tokens=[pb.Token(id=4)]))
    buffer.fail(EngineUnavailable("gone", 5))
    assert (await buffer.take()).tokens[0].id == 4
    with pytest.raises(EngineUnavailable, match="gone"):
        await buffer.take()
