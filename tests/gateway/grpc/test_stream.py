"""`ModelStreamInfer`: requests that share a stream, its failures, its ends."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gateway.grpc import calls
from gateway.grpc import open_inference_pb2 as pb
from gateway.grpc import stream as stream_module
from gateway.grpc.messages import FINAL
from gateway.routes.kserve.tensor import Tensor
from tests.gateway.asgi_client import pace
from tests.gateway.grpc.serving import Client, Served, request, serving, streamed, text, values_of
from tests.processes import PATIENCE, until

Code = grpc.StatusCode
PIECES = ["hel", "lo", " w", "or", "ld", ""]
NEVER = 1 << 30


def final(answer: pb.ModelStreamInferResponse) -> bool:
    """Fails if the answer does not say."""
    return bool(answer.infer_response.parameters[FINAL].bool_param)


def piece(answer: pb.ModelStreamInferResponse) -> str:
    assert not answer.error_message
    return str(values_of(answer.infer_response)["text_output"][0])


async def read(call: Any, count: int) -> list[pb.ModelStreamInferResponse]:
    return [await asyncio.wait_for(call.read(), PATIENCE) for _ in range(count)]


async def rest(call: Any) -> list[pb.ModelStreamInferResponse]:
    return [answer async for answer in call]


async def test_requests_of_one_stream_run_at_once_and_are_told_apart_by_id() -> None:
    async with serving() as served:
        both = asyncio.Barrier(2)
        pace(served.app, lambda _: both.wait())  # neither goes on without the other
        call = served.client.stream()
        for id in "ab":
            await call.write(streamed("lo", id))
        await call.done_writing()
        answers, order = defaultdict(list), ""
        for answer in await asyncio.wait_for(rest(call), PATIENCE):
            answers[answer.infer_response.id].append(answer)
            order += answer.infer_response.id
        for id in "ab":
            assert [piece(each) for each in answers[id]] == PIECES
            assert [final(each) for each in answers[id]] == [False] * 5 + [True]
        assert [{*order[at : at + 2]} for at in range(0, len(order), 2)] == [{"a", "b"}] * 6, "they take turns"
        assert await call.code() == Code.OK


async def test_a_request_with_one_answer_is_answered_once_and_finally() -> None:
    async with serving() as served:
        call = served.client.stream()
        await call.write(request(*text("lo"), id="a"))
        await call.write(request(Tensor.of("TEXT", "BYTES", ["lo"]), model="mock/model_tokenizer", id="b"))
        await call.done_writing()
        answers = {each.infer_response.id: each for each in await rest(call)}
        assert answers.keys() == {"a", "b"} and all(map(final, answers.values()))
        assert piece(answers["a"]) == "lohello world"


async def test_a_client_that_has_no_more_requests_is_still_answered() -> None:
    async with serving() as served:
        go = asyncio.Event()
        pace(served.app, lambda _: go.wait())
        call = served.client.stream()
        await call.write(streamed("lo", "a"))
        await call.done_writing()
        await until(lambda: served.app.gateway.admission.active)
        go.set()
        assert [piece(each) for each in await rest(call)] == PIECES


async def test_a_stream_that_is_cancelled_ends_all_its_requests_in_the_engine() -> None:
    async with serving() as served:
        pace(served.app, lambda count: asyncio.sleep(NEVER if count else 0))
        call = served.client.stream()
        for id in "abc":
            await call.write(streamed("lo", id))
        await read(call, 3)
        call.cancel()
        await until(lambda: sorted(served.app.engine.cancelled) == [1, 2, 3])
        await until(lambda: not served.app.gateway.admission.active)


async def test_a_failure_is_an_answer_and_the_stream_goes_on() -> None:
    async with serving() as served:
        call = served.client.stream()
        for asked, said in (
            (request(*text("lo"), model="none", id="a"), "does not exist"),
            (request(id="a"), "input 'text_input' is missing"),
            (streamed("lo", "a", temperature=-1.0), "temperature"),
            (b"\xff\xff", "the message is not one of this call"),
        ):
            await call.write(asked)
            [answer] = await read(call, 1)
            assert said in answer.error_message
            assert answer.infer_response.id == ("" if isinstance(asked, bytes) else "a") and final(answer)
        await call.write(streamed("lo", "b"))
        assert [piece(each) for each in await read(call, 6)] == PIECES
        await call.done_writing()
        assert await call.code() == Code.OK


async def test_a_client_that_wants_a_status_gets_it_and_all_else_ends() -> None:
    async with serving() as served:
        pace(served.app, lambda count: asyncio.sleep(NEVER if count else 0))
        call = served.client.stream([("triton_grpc_error", "true")])
        await call.write(streamed("lo", "a"))
        assert [piece(each) for each in await read(call, 1)] == PIECES[:1]
        await call.write(request(*text("lo"), model="none"))
        assert (await call.code(), "does not exist" in await call.details()) == (Code.NOT_FOUND, True)
        await until(lambda: served.app.engine.cancelled == [1])


async def test_an_engine_that_goes_away_fails_what_runs_and_not_the_stream() -> None:
    async with serving() as served:
        served.app.engine.die_after = 2
        call = served.client.stream()
        await call.write(streamed("lo", "a"))
        *pieces, failure = await read(call, 3)
        assert [piece(each) for each in pieces] == PIECES[:2] and failure.error_message == "the engine stopped"
        served.app.engine.die_after = None
        await call.write(streamed("lo", "b"))
        assert [piece(each) for each in await read(call, 6)] == PIECES


async def test_no_more_requests_are_read_than_may_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "AT_ONCE", 2)
    async with serving() as served:
        go = asyncio.Event()
        pace(served.app, lambda _: go.wait())
        call = served.client.stream()
        for id in "abcd":
            await call.write(streamed("lo", id))
        await until(lambda: served.app.gateway.admission.active == 2)
        await asyncio.sleep(0.1)
        assert served.app.gateway.admission.active == 2
        go.set()
        await call.done_writing()
        assert len(await rest(call)) == 4 * 6


@contextlib.asynccontextmanager
async def unread(served: Served, *ids: str) -> AsyncIterator[Any]:
    """A stream of long answers whose client reads none: gRPC's receives megabytes unless its window is fixed."""
    fixed_window = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.server.port}", fixed_window) as channel:
        slow = Client(channel).stream()
        for id in ids:
            await slow.write(streamed("lo", id, max_tokens=15_000))
        await until(lambda: served.app.engine.open == len(ids))
        yield slow


async def test_a_client_that_does_not_read_holds_its_own_requests_only() -> None:
    async with serving([9], max_total_tokens=20_000) as served, unread(served, "a") as slow:
        assert (await served.client.infer(request(*text("lo", max_tokens=1))))["text_output"]
        assert served.app.gateway.admission.active == 1
        slow.cancel()
        await until(lambda: not served.app.gateway.admission.active)
        assert served.app.engine.cancelled == [1]


async def test_a_client_that_does_not_read_gives_its_permits_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "STALL_SECONDS", 0.3)
    async with serving([9], max_total_tokens=20_000) as served, unread(served, "a", "b") as slow:
        await until(lambda: len(served.app.engine.cancelled) == 2)
        assert not served.app.gateway.admission.active
        with pytest.raises(grpc.aio.AioRpcError, match="the answer was not read"):
            await rest(slow)  # if it reads again, it learns why
