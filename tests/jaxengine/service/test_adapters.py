"""Adapters that come and go while the engine serves: the calls, what sessions are told, and what a restart finds."""

import asyncio
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from jaxengine.request.interface import ServedAdapter
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service.adapter_record import AdapterRecord, Noted
from tests.engine_mock import MockEngine, MockOptions, continuation
from tests.jaxengine.service.test_service import World, generate, read_until_finished, world
from tests.processes import PATIENCE, ask, until

__all__ = ["world"]

SERVING = MockOptions(step_seconds=0.002, max_loras=4, lora_adapters=("first=org/first",))
serving = pytest.mark.parametrize("world", [SERVING], indirect=True)


def load(name: str, path: str, *, in_place: bool = False) -> pb.LoadAdapterRequest:
    return pb.LoadAdapterRequest(name=name, path=path, in_place=in_place)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


async def next_list(call: Any) -> list[str]:
    """The names in the next message of a session that lists adapters."""
    while True:
        message = await asyncio.wait_for(call.read(), PATIENCE)
        if message.HasField("adapters"):
            return [adapter.name for adapter in message.adapters.adapters]


async def ids_of(call: Any, command: pb.Command) -> list[int]:
    await call.write(command)
    number = command.generate.id
    return (await read_until_finished(call, number))[number][0]


@serving
async def test_a_session_is_told_the_adapters_at_its_begin_and_at_every_change(world: World) -> None:
    world.service.serve(world.engine)
    sessions = [world.session(), world.session()]
    for call in sessions:
        message = await asyncio.wait_for(call.read(), PATIENCE)
        assert [(each.name, each.path, each.rank) for each in message.adapters.adapters] == [("first", "org/first", 8)]
    loaded = await world.stub.LoadAdapter(load("second", "org/second@v1"))
    digest = sha256(b"org/second@v1").digest()
    assert (loaded.name, loaded.path, loaded.rank, loaded.digest) == ("second", "org/second@v1", 8, digest)
    assert [await next_list(call) for call in sessions] == [["first", "second"]] * 2
    for name in ("first", "second"):
        await world.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name))
    assert [await next_list(call) for call in sessions] in ([["second"]] * 2, [[]] * 2)
    listed = await world.stub.ListAdapters(pb.ListAdaptersRequest())
    assert list(listed.adapters) == []


async def test_an_engine_without_adapters_says_so_and_lists_none(world: World) -> None:
    world.service.serve(world.engine)
    message = await asyncio.wait_for(world.session().read(), PATIENCE)
    assert message.HasField("adapters") and not message.adapters.adapters
    code, details = await refusal(world.stub.LoadAdapter(load("a", "org/a")))
    assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "this engine serves no adapters")


@serving
async def test_a_request_is_answered_by_the_adapter_that_it_names(world: World) -> None:
    world.service.serve(world.engine)
    await world.stub.LoadAdapter(load("second", "org/second"))
    call = world.session()
    for number, (name, path) in enumerate({"": "", "first": "org/first", "second": "org/second"}.items(), 1):
        command = generate(number, [10], 9)
        command.generate.adapter = name
        assert await ids_of(call, command) == continuation([10], 9, path)


@serving
async def test_a_request_for_an_adapter_that_is_not_served_ends_invalid(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(pb.Command(generate=ask([10], 5, id=1, adapter="other")))
    _, last = (await read_until_finished(call, 1))[1]
    assert (last.finish, last.error) == (pb.INVALID, "no adapter is called 'other'")


@serving
@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (load("", "org/a"), grpc.StatusCode.INVALID_ARGUMENT, "name ''"),
        (load("a", ""), grpc.StatusCode.INVALID_ARGUMENT, "path ''"),
        (load("a,b", "org/a"), grpc.StatusCode.INVALID_ARGUMENT, "name 'a,b'"),
        (load("a", "/nowhere"), grpc.StatusCode.NOT_FOUND, "'/nowhere'"),
        (load("a", "/"), grpc.StatusCode.INVALID_ARGUMENT, "no adapter_config.json"),
        (load("first", "org/a"), grpc.StatusCode.ALREADY_EXISTS, "'first'"),
    ],
)
async def test_a_refusal_has_the_status_of_its_reason_and_changes_nothing(
    world: World, request_: pb.LoadAdapterRequest, code: grpc.StatusCode, message: str
) -> None:
    world.service.serve(world.engine)
    status, details = await refusal(world.stub.LoadAdapter(request_))
    assert status == code and message in details
    assert world.engine.adapters() == (ServedAdapter("first", "org/first", 8, sha256(b"org/first").digest()),)
    missing = await refusal(world.stub.UnloadAdapter(pb.UnloadAdapterRequest(name="other")))
    assert missing == (grpc.StatusCode.NOT_FOUND, "no adapter is called 'other'")


@serving
async def test_a_failure_nobody_expected_is_an_internal_error_that_shows_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(world.engine, "load_adapter", fail)
    world.service.serve(world.engine)
    assert await refusal(world.stub.LoadAdapter(load("a", "org/a"))) == (grpc.StatusCode.INTERNAL, "internal error")


async def test_before_the_engine_is_ready_every_call_is_unavailable(world: World) -> None:
    for call in (
        world.stub.LoadAdapter(load("a", "org/a")),
        world.stub.UnloadAdapter(pb.UnloadAdapterRequest(name="a")),
        world.stub.ListAdapters(pb.ListAdaptersRequest()),
    ):
        assert (await refusal(call))[0] == grpc.StatusCode.UNAVAILABLE


@serving
async def test_streams_go_on_while_an_adapter_is_loaded_and_a_caller_that_leaves_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    original = world.engine.load_adapter

    def slowly(name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        begun.set()
        assert go.wait(PATIENCE)
        return original(name, path, in_place=in_place)

    monkeypatch.setattr(world.engine, "load_adapter", slowly)
    world.service.serve(world.engine)
    call, other = world.session(), world.session()
    assert await next_list(other) == ["first"]
    loading = world.stub.LoadAdapter(load("second", "org/second"))
    await until(begun.is_set)
    assert await ids_of(call, generate(1, [10], 30)) == continuation([10], 30)
    loading.cancel()
    go.set()
    assert await next_list(other) == ["first", "second"]


@serving
async def test_an_engine_that_shuts_down_loads_no_more_and_ends_what_is_being_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(world.engine, "load_adapter", lambda *_, **__: go.wait(PATIENCE))
    world.service.serve(world.engine)
    loading = asyncio.create_task(refusal(world.stub.LoadAdapter(load("second", "org/second"))))
    await asyncio.sleep(0.1)
    assert await world.service.drain(1)
    late = await refusal(world.stub.LoadAdapter(load("third", "org/third")))
    world.service.stop(1)
    try:
        for status, details in (late, await asyncio.wait_for(loading, PATIENCE)):
            assert (status, details) == (grpc.StatusCode.UNAVAILABLE, "the engine is shutting down")
    finally:
        go.set()


@serving
async def test_a_running_request_keeps_the_adapter_that_it_began_with(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(pb.Command(generate=ask([10], 400, id=1, adapter="first")))
    await until(lambda: world.engine.stats().running_adapters == ("first",))
    await world.stub.LoadAdapter(load("first", "org/other", in_place=True))
    await call.write(pb.Command(generate=ask([10], 9, id=2, adapter="first")))
    answers = await read_until_finished(call, 1, 2)
    assert answers[1][0] == continuation([10], 400, "org/first")
    assert answers[2][0] == continuation([10], 9, "org/other")


def test_what_a_record_notes_is_what_the_next_engine_serves(tmp_path: Path) -> None:
    record = AdapterRecord(tmp_path / "adapters")
    assert record.read() is None
    record.write(MockEngine(MockOptions(max_loras=4, lora_adapters=("b=org/other", "c=org/c@v1"))))
    noted, engine = record.read(), MockEngine(MockOptions(max_loras=4, lora_adapters=("a=org/a", "b=org/b")))
    assert noted is not None and (noted.max_loras, noted.max_lora_rank) == (4, 16)
    noted.restore(engine)
    assert {adapter.name: adapter.path for adapter in engine.adapters()} == {"b": "org/other", "c": "org/c@v1"}
    Noted({}, 4, 16).restore(engine)
    assert engine.adapters() == ()


def test_an_adapter_that_is_gone_stops_no_start_and_no_earlier_one_answers_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = MockEngine(MockOptions(max_loras=4, lora_adapters=("gone=org/first",)))
    Noted({"gone": str(tmp_path / "gone"), "a": "org/a"}, 4, 16).restore(engine)
    assert [adapter.name for adapter in engine.adapters()] == ["a"]
    assert "adapter 'gone' is not served any more" in caplog.text


@pytest.mark.parametrize("text", ["[[1", "[]", "{}", '{"adapters": {}}'])
def test_a_record_that_is_damaged_stops_no_start(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (tmp_path / "adapters").write_text(text)
    assert AdapterRecord(tmp_path / "adapters").read() is None
    assert "cannot tell which adapters were served before" in caplog.text


def test_a_disk_that_cannot_be_written_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    AdapterRecord(tmp_path / "nowhere" / "adapters").write(MockEngine(MockOptions(max_loras=4)))
    assert "will not know of the last change" in caplog.text
