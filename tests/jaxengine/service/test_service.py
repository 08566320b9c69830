"""The engine's gRPC service over the mock engine, in this process: sessions, ids, heartbeats, draining."""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from jaxengine.request.event import Beam, Event, FinishReason, Token
from jaxengine.request.interface import StepResult
from jaxengine.request.sequence import Request
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.engine_pb2_grpc import EngineStub, add_EngineServicer_to_server
from jaxengine.rpc.limits import ALTERNATIVE_BYTES, MAX_LISTED_ALTERNATIVES, MAX_LOGITS_BYTES
from jaxengine.service import session as session_module
from jaxengine.service.cpu_liveness import CpuLiveness
from jaxengine.service.service import Service
from jaxengine.service.session import GatewaySession
from jaxengine.service.step_loop import HEARTBEAT_SECONDS
from tests.engine_mock import RAISE, MockEngine, MockOptions, continuation
from tests.processes import PATIENCE, ask, until


class World:
    """A service, its engine, and a way to reach it."""

    def __init__(self, service: Service, engine: MockEngine, stub: Any, crashed: "asyncio.Future[None]") -> None:
        self.service, self.engine, self.stub, self.crashed = service, engine, stub, crashed

    def session(self) -> Any:
        return self.stub.Session()


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    options = getattr(request, "param", MockOptions(step_seconds=0.002))
    crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    service = Service(pb.Description(), crashed)
    engine = MockEngine(options)
    with tempfile.TemporaryDirectory() as directory:
        address = transport.address(Path(directory) / "s")
        server = grpc.aio.server()
        add_EngineServicer_to_server(service, server)
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield World(service, engine, EngineStub(channel), crashed)
        service.stop(5)
        await server.stop(1)


def generate(number: int, prompt: list[int], new_tokens: int) -> pb.Command:
    return pb.Command(generate=ask(prompt, new_tokens, id=number))


async def read_until_finished(call: Any, *numbers: int) -> dict[int, tuple[list[int], pb.RequestEvent]]:
    """Ids and last event of each request."""
    ids: dict[int, list[int]] = {number: [] for number in numbers}
    last: dict[int, pb.RequestEvent] = {}
    while len(last) < len(numbers):
        message = await asyncio.wait_for(call.read(), PATIENCE)
        for event in message.events:
            assert event.id not in last, "an event after the last one"
            ids[event.id] += [token.id for token in event.tokens]
            if event.finish:
                last[event.id] = event
    return {number: (ids[number], last[number]) for number in numbers}


async def test_describe_answers_while_the_engine_loads_and_sessions_are_refused(world: World) -> None:
    world.service.description.progress = "loading 3/7"
    assert (await world.stub.Describe(pb.DescribeRequest())).progress == "loading 3/7"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.session().read()
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "loading 3/7" in refused.value.details()


async def test_describe_tells_what_the_engine_turned_out_to_be(world: World) -> None:
    world.service.serve(world.engine)
    description = await world.stub.Describe(pb.DescribeRequest())
    assert description.state == pb.READY
    assert description.max_total_tokens == world.engine.options.max_total_tokens
    assert list(description.eos_token_ids) == [0]


async def test_requests_of_one_session_come_back_exact_and_with_their_own_ids(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    prompts = {number: [number, 7] for number in (5, 900, 2**63)}
    for number, prompt in prompts.items():
        await call.write(generate(number, [prompt[0] % 200, 7], 20))
    answers = await read_until_finished(call, *prompts)
    for number, (ids, last) in answers.items():
        assert ids == continuation([number % 200, 7], 20)
        assert last.finish == pb.LENGTH


async def test_a_request_that_another_engine_began_is_gone_on_with(world: World) -> None:
    world.service.serve(world.engine)
    call, whole = world.session(), continuation([5, 7], 20)
    for number, count in ((1, 12), (2, 0), (3, 20)):
        command = generate(number, [5, 7], 20)
        command.generate.resume.CopyFrom(pb.Resume(generated=whole[:count]))
        await call.write(command)
    answers = await read_until_finished(call, 1, 2, 3)
    assert (answers[1][0], answers[1][1].finish) == (whole[12:], pb.LENGTH)
    refusals = ("resume.generated has no tokens", "resume.generated has 20 tokens, not fewer than max_tokens 20")
    for number, refusal in zip((2, 3), refusals, strict=True):
        assert (answers[number][1].finish, answers[number][1].error) == (pb.INVALID, refusal)


async def test_two_sessions_may_use_the_same_id(world: World) -> None:
    world.service.serve(world.engine)
    first, second = world.session(), world.session()
    await first.write(generate(1, [10], 15))
    await second.write(generate(1, [20], 15))
    assert (await read_until_finished(first, 1))[1][0] == continuation([10], 15)
    assert (await read_until_finished(second, 1))[1][0] == continuation([20], 15)


async def test_an_id_that_is_running_already_breaks_the_protocol(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [10], 1000))
    await call.write(generate(1, [10], 1000))
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        while True:
            await asyncio.wait_for(call.read(), PATIENCE)
    assert broken.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "request id 1 is already running" in broken.value.details()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": []}, "prompt must not be empty"),
        ({"max_new_tokens": 0}, "max_tokens must be in"),
        ({"max_new_tokens": 10**6}, "at most 2048"),
        ({"min_new_tokens": 9}, "min_tokens must be in"),
        ({"timeout_seconds": -1.0}, "timeout_seconds must be at least 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be at least 0"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids has 65 entries, at most 64"),
    ],
)
async def test_a_request_that_cannot_be_served_ends_invalid_and_others_go_on(
    world: World, wrong: dict[str, Any], message: str
) -> None:
    world.service.serve(world.engine)
    call = world.session()
    request = ask([1], 5, id=1)
    for name, value in wrong.items():
        if isinstance(value, list):
            request.ClearField(name)
            getattr(request, name).extend(value)
        else:
            setattr(request, name, value)
    await call.write(pb.Command(generate=request))
    await call.write(generate(2, [3], 5))
    answers = await read_until_finished(call, 1, 2)
    assert answers[1][1].finish == pb.INVALID
    assert message in answers[1][1].error
    assert answers[2][0] == continuation([3], 5)


async def test_a_request_that_cannot_be_taken_ends_alone_and_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    submit = world.engine.submit

    def fails_for_some(request: Request) -> None:
        if request.prompt == [1]:
            raise KeyError("nobody thought of this")
        submit(request)

    monkeypatch.setattr(world.engine, "submit", fails_for_some)
    world.service.serve(world.engine)
    call = world.session()
    for number in (3, 1, 2):
        await call.write(generate(number, [number], 5))
    answers = await read_until_finished(call, 1, 2, 3)
    assert (answers[1][1].finish, answers[1][1].error) == (pb.ERROR, "internal error")
    assert [answers[number][0] for number in (2, 3)] == [continuation([number], 5) for number in (2, 3)]
    assert "nobody thought of this" in caplog.text


async def test_cancelling_ends_a_request_once_and_cancelling_nothing_is_ignored(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [10], 2000))
    for _ in range(3):
        await call.write(pb.Command(cancel=pb.Cancel(id=1)))
    await call.write(pb.Command(cancel=pb.Cancel(id=77)))
    await call.write(generate(2, [3], 5))
    answers = await read_until_finished(call, 1, 2)
    assert answers[1][1].finish == pb.CANCELLED
    assert answers[2][0] == continuation([3], 5)


@pytest.mark.parametrize("ending", ["cancel", "half close"])
async def test_everything_of_a_session_that_ends_is_cancelled(world: World, ending: str) -> None:
    world.service.serve(world.engine)
    call = world.session()
    for number in range(20):
        await call.write(generate(number, [number], 2000))
    await until(lambda: world.engine.stats().running == 20)
    if ending == "cancel":
        call.cancel()
    else:
        await call.done_writing()
    await until(lambda: world.engine.idle and not world.service._running)


async def test_an_idle_engine_sends_heartbeats_with_its_state(world: World) -> None:
    began = time.monotonic()
    world.service.serve(world.engine)
    call = world.session()
    await call.read()  # empty, sent when the session opens
    for _ in range(4):
        message = await asyncio.wait_for(call.read(), PATIENCE)
        assert message.stats.pages_total > 0 and not message.events and not message.stats.step_seconds
    assert time.monotonic() - began >= 3 * HEARTBEAT_SECONDS


async def test_a_step_is_reported_once(world: World) -> None:
    """What is refused wakes the writer too; it must not repeat the last step's numbers."""
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [10], 3))
    await read_until_finished(call, 1)
    await call.write(generate(2, [], 3))
    message = await asyncio.wait_for(call.read(), PATIENCE)
    assert message.events[0].finish == pb.INVALID
    assert not message.HasField("stats")


async def test_draining_lets_running_requests_finish_and_takes_no_more(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [10], 1000))  # two seconds: it must still run when it is seen
    await until(lambda: world.engine.stats().running == 1)
    draining = asyncio.create_task(world.service.drain(PATIENCE))
    await asyncio.sleep(0)
    await call.write(generate(2, [10], 5))
    answers = await read_until_finished(call, 1, 2)
    assert answers[1][0] == continuation([10], 1000)
    assert (answers[2][1].finish, answers[2][1].error) == (pb.CANCELLED, "the engine is shutting down")
    assert await draining


async def test_draining_gives_up_at_its_deadline(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [10], 2000))
    await until(lambda: world.engine.stats().running == 1)
    assert not await world.service.drain(0.05)


async def test_what_escapes_a_step_is_told_and_ends_the_loop(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [RAISE], 5))
    with pytest.raises(RuntimeError, match="beyond repair"):
        await asyncio.wait_for(world.crashed, PATIENCE)


async def test_a_gateway_that_does_not_read_holds_no_more_than_its_requests_output() -> None:
    """A thousand steps unread are one message with one event per request."""
    session = GatewaySession()
    for step in range(1000):
        for number in (1, 2):
            session.put(number, Event(number, [Token(step, 0.0)]))
        session.flush(step, pb.Stats(running=2))
    message = await session.take()
    assert message is not None and message.step == 999
    assert [[token.id for token in event.tokens] for event in message.events] == [list(range(1000))] * 2


async def test_of_a_gateway_that_does_not_read_no_message_lists_more_than_fits_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MAX_LISTED_ALTERNATIVES", 10)
    session = GatewaySession()
    for step in range(6):
        session.put(1, Event(1, [Token(step, 0.0, tuple((number, 0.0) for number in range(4)))]))
        session.flush(step, pb.Stats(running=1))
    session.close()
    messages = []
    while (message := await session.take()) is not None:
        messages.append(message)
    ids = [[token.id for event in message.events for token in event.tokens] for message in messages]
    assert ids == [[0, 1, 2], [3, 4, 5]]
    assert [message.HasField("stats") for message in messages] == [True, True]


async def test_the_alternatives_of_beams_count_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_LISTED_ALTERNATIVES", 10)
    session = GatewaySession()
    answers = [Beam([Token(1, 0.0, ((1, 0.0), (2, 0.0)))] * 3, FinishReason.EOS, -1.0)] * 2
    for number in (1, 2):
        session.put(number, Event(number, finish=FinishReason.EOS, beams=answers))
    session.close()
    messages = [await session.take(), await session.take()]
    assert [[event.id for event in message.events] for message in messages if message] == [[1], [2]]


async def test_logits_count_as_the_alternatives_that_take_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_LISTED_ALTERNATIVES", 10)
    session = GatewaySession()
    for number in range(1, 6):
        session.put(number, Event(number, finish=FinishReason.LENGTH, logits=bytes(5 * ALTERNATIVE_BYTES)))
    session.close()
    messages = []
    while (message := await session.take()) is not None:
        messages.append([event.id for event in message.events])
    assert messages == [[1, 2], [3, 4], [5]]


def test_what_a_message_may_hold_and_the_largest_answer_more_fit_one() -> None:
    listed = MAX_LISTED_ALTERNATIVES * ALTERNATIVE_BYTES
    assert listed + max(listed, MAX_LOGITS_BYTES) < transport.MAX_MESSAGE_BYTES


class SlowEngine(MockEngine):
    """A step takes 4 s, in which `work` is done over and over."""

    def __init__(self, options: MockOptions, work: Callable[[], None]) -> None:
        super().__init__(options)
        self._work = work
        self.began = math.inf  # the first step
        self.cpu = 0.0  # seconds of CPU time that steps took

    def step(self) -> StepResult | None:
        now = time.monotonic()
        end = now if self.idle else now + 4
        self.began = self.began if self.idle else min(self.began, now)
        while time.monotonic() < end:
            self._work()
            self.cpu = time.thread_time()
        return super().step()


def spin() -> None:
    sum(range(1000))


def rest() -> None:
    time.sleep(0.5)


@pytest.mark.parametrize(("on_host", "work", "lives"), [(True, spin, True), (True, rest, False), (False, spin, False)])
async def test_signs_of_life_are_sent_during_a_silent_step_only_where_it_computes_on_the_cpu(
    world: World, on_host: bool, work: Callable[[], None], lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SlowEngine(MockOptions(steps_on_host=on_host), work)
    # The step's own thread alone: other threads of this process may be earlier tests' (`test_cpu_liveness.py`).
    monkeypatch.setattr(CpuLiveness, "_cpu_of_others", lambda self: engine.cpu)
    world.service.serve(engine)
    call = world.session()
    await call.write(generate(1, [10], 1))
    signs = 0
    while not (await asyncio.wait_for(call.read(), PATIENCE)).events:
        signs += time.monotonic() > engine.began + 1  # earlier ones may be heartbeats from before the step
    assert (signs > 2) == lives


@pytest.mark.parametrize(
    ("limits", "finish"),
    [({"timeout_seconds": 0.3}, pb.DEADLINE), ({"queue_timeout_seconds": 0.3}, pb.QUEUE_TIMEOUT)],
)
async def test_a_deadline_that_passes_during_a_step_is_seen_at_once(
    world: World, limits: dict[str, float], finish: pb.FinishReason
) -> None:
    engine = SlowEngine(MockOptions(), rest)
    world.service.serve(engine)
    call = world.session()
    await call.write(generate(1, [10], 1))
    await call.write(pb.Command(generate=ask([20], 5, id=2, **limits)))
    events = []
    while not events:
        events = list((await asyncio.wait_for(call.read(), PATIENCE)).events)
    assert [(event.id, event.finish) for event in events] == [(2, finish)], "the step was waited for"
    assert (await read_until_finished(call, 1))[1][0] == continuation([10], 1)
    await until(lambda: not world.service._expired)
    assert engine.idle and not world.service._running
