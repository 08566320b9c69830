"""What holds for every call: keys, bounds, statuses, the log, the end of a call whose client leaves."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from gateway.grpc import calls
from gateway.grpc import open_inference_pb2 as pb
from tests.gateway.asgi_client import pace
from tests.gateway.grpc.serving import ANSWERS, MODEL, Client, Metadata, request, serving, streamed, text
from tests.gateway.toys import FAIL_TEXT
from tests.processes import until

Code = grpc.StatusCode
PROBES = ("ServerLive", "ServerReady", "Check")
NEVER = 1 << 30


def metadata(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata() or ())


@pytest.mark.parametrize(
    ("given", "let_in"),
    [
        ([], False),
        ([("authorization", "Bearer right")], True),
        ([("authorization", "bearer right")], True),
        ([("authorization", "Bearer wrong")], False),
        ([("authorization", "right")], False),
        ([("authorization", "Bearer right"), ("authorization", "Bearer right")], False),
        ([("x-api-key", "right")], True),
        ([("x-api-key", "right"), ("authorization", "Bearer wrong")], False),
        ([("x-api-key", "of a gateway"), ("authorization", "Bearer right")], True),
    ],
)
async def test_all_calls_but_probes_ask_for_the_key_before_they_read(given: Metadata, let_in: bool) -> None:
    async with serving(api_key="right") as served:
        for name in (*ANSWERS, "Check", "ModelStreamInfer"):
            call = served.client.raw_stream(name, given)
            if let_in or name in PROBES:
                await call.done_writing()
                assert await call.code() == (Code.OK if name == "ModelStreamInfer" else Code.INVALID_ARGUMENT), name
            else:
                assert await call.code() == Code.UNAUTHENTICATED, name
                assert "the API key is missing or wrong" in await call.details()


async def test_a_callers_key_is_its_place_in_line_and_its_cache() -> None:
    async with serving(api_key="one\ntwo") as served:
        for key in ("one", "two"):
            await served.client.infer(request(*text("lo")), metadata=[("x-api-key", key)])
        first, second = served.app.engine.requests
        assert (first.caller, second.caller) == (0, 1)
        assert first.cache_salt != second.cache_salt


async def test_a_message_beyond_the_payload_limit_is_not_read() -> None:
    async with serving(payload_limit=1000) as served:
        assert "text_output" in await served.client.infer(request(*text("lo")))
        error = await served.client.refusal("ModelInfer", request(*text("lo" * 1000)))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        stream = served.client.stream()
        await stream.write(streamed("lo" * 1000, "a"))
        assert await stream.code() == Code.RESOURCE_EXHAUSTED


async def test_compressed_messages_are_refused_since_gRPC_would_inflate_them_without_bound() -> None:
    async with serving(payload_limit=1000) as served:
        error = await served.client.refusal(
            "ModelInfer", request(*text("lo" * 100_000)), compression=grpc.Compression.Gzip
        )
        assert error.code() == Code.UNIMPLEMENTED
        assert not served.app.engine.requests


async def test_a_message_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BODY_SECONDS", 0.05)
    async with serving() as served:
        for name in ("ModelInfer", "ServerLive"):
            call = served.client.raw_stream(name)
            assert await call.code() == Code.DEADLINE_EXCEEDED
            assert await call.details() == "The message took longer than 0.05 seconds"


async def test_a_call_without_a_message_is_refused() -> None:
    async with serving() as served:
        call = served.client.raw_stream("ModelInfer")
        await call.done_writing()
        assert (await call.code(), await call.details()) == (Code.INVALID_ARGUMENT, "the call has no message")


async def test_more_requests_than_the_limit_are_refused_and_probes_are_not() -> None:
    go = asyncio.Event()
    async with serving(most=2) as served:
        pace(served.app, lambda _: go.wait())
        stream = served.client.stream()
        await stream.write(streamed("lo", "a"))
        running = asyncio.create_task(served.client.infer(request(*text("lo"))))
        await until(lambda: served.app.gateway.admission.active == 2)
        error = await served.client.refusal("ModelMetadata", pb.ModelRequest(name=MODEL))
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "more than 2 requests at once")
        assert metadata(error)["retry-after"] == "1"
        await stream.write(streamed("lo", "b"))
        answer = await stream.read()
        assert (answer.infer_response.id, answer.error_message) == ("b", "more than 2 requests at once")
        for name in PROBES:
            await served.client.call(name)
        go.set()
        await running
        stream.cancel()


async def test_streams_are_bounded_and_without_a_request_take_no_requests_place() -> None:
    async with serving(most=2) as served:
        idle = [served.client.stream() for _ in range(2)]
        for stream in idle:
            await stream.wait_for_connection()
        one_more = served.client.raw_stream("ModelStreamInfer")
        assert (await one_more.code(), await one_more.details()) == (Code.UNAVAILABLE, "more than 2 streams at once")
        assert (await served.client.infer(request(*text("lo"))))["text_output"]


async def test_an_overload_says_when_to_come_again() -> None:
    async with serving() as served:
        with served.app.gateway.admission.request(16):
            error = await served.client.refusal("ModelInfer", request(*text("lo")))
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "Model is overloaded")
        assert 1 <= int(metadata(error)["retry-after"]) <= 60


async def test_without_an_engine_calls_are_unavailable_and_readiness_is_false() -> None:
    async with serving() as served:
        served.app.engine.ready = False
        named = pb.ModelRequest(name=MODEL)
        for name, message in {
            "ModelInfer": request(*text("lo")), "ModelMetadata": named, "ModelConfig": named, "ModelStatistics": None,
            "RepositoryIndex": None,
        }.items():  # fmt: skip
            error = await served.client.refusal(name, message)
            assert (error.code(), error.details()) == (Code.UNAVAILABLE, "the model is not ready"), name
            assert metadata(error)["retry-after"] == "5"
        assert (await served.client.call("ServerLive")).live
        assert not (await served.client.call("ServerReady")).ready
        assert not (await served.client.call("ModelReady", named)).ready
        assert (await served.client.call("Check")).status == pb.HealthCheckResponse.NOT_SERVING


async def test_a_server_that_drains_ends_what_runs_and_takes_nothing_new() -> None:
    go = asyncio.Event()
    async with serving() as served:
        pace(served.app, lambda _: go.wait())
        stream = served.client.stream()
        await stream.write(streamed("lo", "a"))
        await until(lambda: served.app.gateway.admission.active)
        served.app.gateway.draining = True
        error = await served.client.refusal("ModelInfer", request(*text("lo")))
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "the server is shutting down")
        await stream.write(streamed("lo", "b"))
        answer = await stream.read()
        assert (answer.infer_response.id, answer.error_message) == ("b", "the server is shutting down")
        go.set()
        assert [answer.infer_response.id for answer in [await stream.read() for _ in range(6)]] == ["a"] * 6


async def test_stopping_ends_calls_that_have_not_ended_in_time() -> None:
    async with serving() as served:
        pace(served.app, lambda _: asyncio.sleep(NEVER))
        idle, busy = served.client.stream(), served.client.stream()
        await busy.write(streamed("lo", "a"))
        running = asyncio.create_task(served.client.refusal("ModelInfer", request(*text("lo"))))
        await until(lambda: served.app.gateway.admission.active == 2)
        await asyncio.wait_for(served.server.stop(0.1), 20)
        assert {(await running).code(), await idle.code(), await busy.code()} <= {Code.UNAVAILABLE, Code.CANCELLED}
        await until(lambda: not served.app.gateway.admission.active)


async def leave(client: Client, how: str) -> None:
    """Begin an inference, and leave it."""
    sent = request(*text("lo")).SerializeToString()
    call = client.unary("ModelInfer")(sent, timeout=0.3 if how == "deadline" else None)
    if how == "cancel":
        await asyncio.sleep(0.1)
        call.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_call_that_its_client_leaves_ends_in_the_engine(how: str) -> None:
    async with serving() as served:
        pace(served.app, lambda count: asyncio.sleep(NEVER if count else 0))
        await leave(served.client, how)
        await until(lambda: served.app.engine.cancelled == [1] and not served.app.gateway.admission.active)


async def test_a_bug_of_ours_shows_nothing_of_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        monkeypatch.setattr(served.app.gateway.metrics, "totals", lambda *_: {}["hidden"])
        error = await served.client.refusal("ModelStatistics")
        assert (error.code(), error.details()) == (Code.INTERNAL, "internal error")
        assert "KeyError: 'hidden'" in caplog.text


async def test_what_fails_in_the_engine_is_internal_and_an_engine_that_goes_away_is_unavailable() -> None:
    async with serving() as served:
        failing = request(*text(FAIL_TEXT))
        failing.parameters["add_special_tokens"].bool_param = False
        assert (await served.client.refusal("ModelInfer", failing)).code() == Code.INTERNAL
        served.app.engine.die_after = 1
        error = await served.client.refusal("ModelInfer", request(*text("lo")))
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "the engine stopped")


async def test_an_unknown_call_is_unimplemented() -> None:
    async with serving() as served:
        for name in ("Watch", "ModelTrain"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await served.client.unary(name)(b"")
            assert error.value.code() == Code.UNIMPLEMENTED


async def test_probes_are_kept_to_the_port_of_their_own() -> None:
    async with serving(admin_port=1, admin_exclusive=True) as served:
        for name in PROBES:
            assert (await served.client.refusal(name)).code() == Code.UNIMPLEMENTED
        assert (await served.client.call("ModelReady", pb.ModelRequest(name=MODEL))).ready


async def test_every_call_is_one_line_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gateway.access")
    async with serving(api_key="right") as served:
        key = [("x-api-key", "right")]
        await served.client.infer(request(*text("lo")), metadata=key)
        await served.client.refusal("ModelInfer", request(model="none"), metadata=key)
        await served.client.refusal("ModelInfer", request(*text("lo")))
        await served.client.call("ServerLive")
        stream = served.client.stream(key)
        for id in "ab":
            await stream.write(request(*text("lo"), id=id))
        await stream.done_writing()
        assert len([answer async for answer in stream]) == 2
        pace(served.app, lambda _: asyncio.sleep(NEVER))
        with pytest.raises(grpc.aio.AioRpcError):
            await served.client.unary("ModelInfer")(request(*text("lo")).SerializeToString(), metadata=key, timeout=0.2)
        await until(lambda: len(caplog.records) == 6)
    lines = [(record.levelname, record.message, record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    seen = [(level, message, each["path"].rpartition("/")[2], each["status"]) for level, message, each in lines]
    assert seen == [
        ("INFO", "answered", "ModelInfer", "OK"),
        ("INFO", "answered", "ModelInfer", "NOT_FOUND"),
        ("INFO", "answered", "ModelInfer", "UNAUTHENTICATED"),
        ("DEBUG", "answered", "ServerLive", "OK"),
        ("INFO", "answered", "ModelStreamInfer", "OK"),
        ("INFO", "cut", "ModelInfer", "CANCELLED"),
    ]
    assert {(each["method"], each["client"]) for _, _, each in lines} == {("gRPC", "127.0.0.1")}
    span, requests = lines[0][2]["span"], [each.get("requests") for _, _, each in lines]
    assert span["name"] == "ModelInfer" and span["generated_tokens"] == "6" and requests == [None] * 4 + [2, None]
    assert lines[0][2]["bytes"] > 40 and "right" not in caplog.text


async def test_the_trace_of_the_metadata_is_gone_on_with() -> None:
    async with serving() as served:
        seen = served.app.engine.requests
        parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        started: list[tuple[str, str]] = []
        tracing = served.app.gateway.tracing
        start = tracing.start
        tracing.start = lambda name, parent, **fields: started.append((name, parent)) or start(name, parent, **fields)  # type: ignore
        await served.client.infer(request(*text("lo")), metadata=[("traceparent", parent)])
        assert started == [("ModelInfer", parent)] and len(seen) == 1
