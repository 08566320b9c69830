"""The times of an answer and the load of the server, in answers of `/v1` that are asked for them."""

import json
from typing import Any

import pytest

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp, events, serve

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "lo", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "lo"}], "max_tokens": 4},
}
TIMINGS = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}
FORMAT, LOAD = "endpoint-load-metrics-format", "endpoint-load-metrics"
BUSY = {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}

routes = pytest.mark.parametrize("path", ROUTES)


@routes
async def test_an_answer_tells_its_times_where_the_operator_wants_it(path: str) -> None:
    async with serve(enable_per_request_metrics=True) as app:
        answer = (await app.post(path, ROUTES[path])).json()
        assert answer["metrics"].keys() == TIMINGS
        assert all(value >= 0 for value in answer["metrics"].values()) and answer["metrics"]["tokens_per_second"] > 0


@routes
async def test_otherwise_it_does_not(path: str) -> None:
    async with serve() as app:
        assert (await app.post(path, ROUTES[path])).json().get("metrics") is None


@routes
async def test_a_single_token_has_no_time_between_tokens(path: str) -> None:
    async with serve(enable_per_request_metrics=True) as app:
        answer = (await app.post(path, ROUTES[path] | {"max_tokens": 1})).json()
        assert answer["metrics"]["mean_itl_ms"] is None


@routes
async def test_several_sequences_have_no_times_in_common(path: str) -> None:
    async with serve(enable_per_request_metrics=True) as app:
        answer = (await app.post(path, ROUTES[path] | {"n": 2})).json()
        assert "metrics" in answer and answer["metrics"] is None


@routes
async def test_a_stream_tells_its_times_with_its_usage(path: str) -> None:
    async with serve(enable_per_request_metrics=True) as app:
        body = ROUTES[path] | {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events(await app.post(path, body))
    assert done == "[DONE]" and last["usage"]["completion_tokens"] == 4
    assert last["metrics"].keys() == TIMINGS
    assert not any("metrics" in chunk for chunk in chunks)


def busy(app: ServedApp) -> None:
    app.gateway.metrics.observe_step(0, pb.Stats(waiting=3, pages_total=8, pages_used=2))


@routes
@pytest.mark.parametrize("kind", ["TEXT", "text"])
async def test_the_load_is_told_as_text(path: str, kind: str) -> None:
    async with serve() as app:
        busy(app)
        answer = await app.http.post(path, json=ROUTES[path], headers={FORMAT: kind})
    told = ", ".join(f"named_metrics.{name}={value}" for name, value in BUSY.items())
    assert answer.headers[LOAD] == f"TEXT {told}"


@routes
async def test_the_load_is_told_as_json(path: str) -> None:
    async with serve() as app:
        busy(app)
        answer = await app.http.post(path, json=ROUTES[path], headers={FORMAT: "JSON"})
    kind, _, report = answer.headers[LOAD].partition(" ")
    assert (kind, json.loads(report)) == ("JSON", {"named_metrics": BUSY})


@routes
@pytest.mark.parametrize(
    ("headers", "more"),
    [({}, {}), ({FORMAT: "BIN"}, {}), ({FORMAT: "TEXT"}, {"stream": True}), ({FORMAT: "TEXT"}, {"n": 0})],
    ids=["nobody asks", "another format", "a stream", "a refusal"],
)
async def test_the_load_is_told_to_nobody_else(path: str, headers: dict[str, str], more: dict[str, Any]) -> None:
    async with serve() as app:
        answer = await app.http.post(path, json=ROUTES[path] | more, headers=headers)
    assert LOAD not in answer.headers
