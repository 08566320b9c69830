"""Beam search on `/v1`. The mock's beam `k` is "hello world" without its first `k` tokens, whose logprobs are `k + 1`
times as low.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.request import output
from gateway.request.output import LONG
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import FAIL
from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import HELLO, serve
from tests.gateway.routes.openai.test_chat import USER
from tests.processes import PATIENCE

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BEAMS = ["hello world", "lo world", " world", "orld", "ld", ""]
SEARCH: dict[str, Any] = {"use_beam_search": True}
BODIES: dict[str, dict[str, Any]] = {TEXT: {"prompt": "lo", **SEARCH}, CHAT: {"messages": USER, **SEARCH}}

routes = pytest.mark.parametrize("path", BODIES)


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in answer["choices"]]


async def answered(path: str, /, **fields: Any) -> dict[str, Any]:
    async with serve() as app:
        response = await app.post(path, BODIES[path] | fields)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found


async def request_of(path: str, /, *, served: dict[str, Any] | None = None, **fields: Any) -> pb.Generate:
    """The only request that the engine gets."""
    async with serve(**served or {}) as app:
        response = await app.post(path, BODIES[path] | fields)
        assert response.status_code == 200, response.text
        [request] = app.engine.requests
        return request


@routes
@pytest.mark.parametrize("n", [1, 3])
async def test_one_request_of_that_width_answers_all_choices_best_first(path: str, n: int) -> None:
    answer = await answered(path, n=n)
    assert texts(answer) == BEAMS[:n]
    assert answer["usage"]["completion_tokens"] == sum(6 - k for k in range(n))
    search = (await request_of(path, n=n)).beam_search
    assert (search.width, search.answers, search.length_penalty) == (n, n, 1)


async def test_best_of_is_a_width_above_n_and_the_score_decides_not_the_mean_logprob() -> None:
    fields = {"best_of": 5, "n": 2, "length_penalty": -1.0}
    search = (await request_of(TEXT, **fields)).beam_search
    assert (search.width, search.answers, search.length_penalty) == (5, 2, -1)
    answer = await answered(TEXT, **fields)
    assert texts(answer) == ["ld", "hello world"]
    assert answer["usage"]["completion_tokens"] == 2 + 6


@routes
@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (None, pb.BeamSearch.HEURISTIC),
        (False, pb.BeamSearch.HEURISTIC),
        (True, pb.BeamSearch.WIDTH),
        ("never", pb.BeamSearch.NEVER),
    ],
)
async def test_when_to_stop_is_told_the_engine(path: str, asked: Any, sent: int) -> None:
    request = await request_of(path, early_stopping=asked)
    assert request.beam_search.early_stopping == sent
    assert request.HasField("beam_search")


async def test_each_of_several_prompts_is_searched_by_a_request_of_its_own() -> None:
    async with serve() as app:
        answer = (await app.post(TEXT, prompt=["lo", "he"], n=2, **SEARCH)).json()
        assert texts(answer) == BEAMS[:2] * 2
        assert [len(request.prompt) for request in app.engine.requests] == [2, 2]
        assert answer["usage"]["prompt_tokens"] == 4 and answer["usage"]["completion_tokens"] == 2 * (6 + 5)


@routes
async def test_every_beam_ends_for_its_own_reason(path: str) -> None:
    answer = await answered(path, n=3, max_tokens=5, return_token_ids=True, stop_token_ids=[HELLO[3]])
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    assert [choice["stop_reason"] for choice in answer["choices"]] == [HELLO[3]] * 3
    answer = await answered(path, n=2, max_tokens=5, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [HELLO[:5], HELLO[1:]]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "stop"]


async def test_logprobs_are_those_of_each_beam() -> None:
    text = await answered(TEXT, n=2, logprobs=2)
    listed = [choice["logprobs"] for choice in text["choices"]]
    assert [each["token_logprobs"] for each in listed] == [[-0.25] * 6, [-0.5] * 5]
    assert [each["tokens"][0] for each in listed] == ["hel", "lo"]
    assert all(len(top) in (2, 3) for each in listed for top in each["top_logprobs"])
    chat = await answered(CHAT, n=2, logprobs=True, top_logprobs=2)
    entries = [choice["logprobs"]["content"] for choice in chat["choices"]]
    assert [[entry["logprob"] for entry in each] for each in entries] == [[-0.25] * 6, [-0.5] * 5]
    assert all(len(entry["top_logprobs"]) == 2 for each in entries for entry in each)


async def test_the_prompt_is_echoed_before_every_beam() -> None:
    assert texts(await answered(TEXT, n=2, echo=True)) == ["lo" + beam for beam in BEAMS[:2]]
    messages = [*USER, {"role": "assistant", "content": "Say "}]
    chat = await answered(CHAT, n=2, messages=messages, echo=True, continue_final_message=True)
    assert texts(chat) == ["Say " + beam for beam in BEAMS[:2]]


async def test_an_echo_alone_searches_for_nothing() -> None:
    answer = await answered(TEXT, n=2, echo=True, max_tokens=0)
    assert texts(answer) == ["lo", "lo"] and answer["usage"]["completion_tokens"] == 0


@routes
async def test_what_is_recommended_for_sampling_does_not_hold_for_a_search(path: str) -> None:
    recommended = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "typical_p": 0.9}
    served = {"generation_config": {**recommended, "repetition_penalty": 1.5}}
    sampling = (await request_of(path, served=served)).sampling
    greedy = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.typical_p)
    assert greedy == (0, 1, 0, 0, 1)
    assert sampling.repetition_penalty == 1.5


@routes
async def test_what_changes_the_likelihoods_goes_with_a_search(path: str) -> None:
    fields = {
        "repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"5": 1.5},
        "bad_words": ["stop"], "min_tokens": 2, "stop_token_ids": [7], "ignore_eos": True, "max_tokens": 4,
    }  # fmt: skip
    request = await request_of(path, **fields)
    sampling = request.sampling
    assert (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (1.25, 0.5, 0.5)
    assert dict(sampling.logit_bias) == {5: 1.5} and len(sampling.bad_words) == 2
    assert (request.min_new_tokens, list(request.stop_token_ids), request.ignore_eos) == (2, [7], True)


@routes
async def test_an_adapter_may_answer(path: str) -> None:
    request = await request_of(path, served={"adapters": ("sql=org/sql",)}, model="sql", n=2)
    assert request.adapter == "sql"


@routes
async def test_values_that_ask_for_nothing_are_taken(path: str) -> None:
    nothing = {"temperature": 0, "top_k": -1, "min_p": 0.0, "typical_p": 1.0, "stream": False, "stop": []}
    for top_p in (1.0, 0.0):
        sampling = (await request_of(path, **nothing, top_p=top_p)).sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 1, 0)
    assert texts(await answered(path, **dict.fromkeys(nothing), length_penalty=1, early_stopping=False)) == BEAMS[:1]


@routes
async def test_a_client_that_leaves_cancels_the_search(path: str) -> None:
    async with serve() as app:
        blocked, closed = asyncio.Event(), list[pb.Generate]()

        async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
            blocked.set()
            try:
                await asyncio.Event().wait()
                yield pb.RequestEvent()
            finally:
                closed.append(request)

        app.engine.generate = generate  # type: ignore[method-assign]
        connection = Connection(app, path, BODIES[path] | {"n": 3})
        running = asyncio.create_task(connection.run())
        await blocked.wait()
        assert app.gateway.admission.active == 3
        connection.leave()
        await asyncio.wait_for(running, PATIENCE)
        assert len(closed) == 1 and app.gateway.admission.active == 0


async def test_every_beam_of_every_prompt_takes_a_permit_and_each_prompt_waits_once() -> None:
    async with serve() as app:
        admission = app.gateway.admission
        body = {"prompt": ["lo", "lo"], "n": 2, "best_of": 4, **SEARCH}
        with admission.request(admission.max_requests - 7):
            assert (await app.post(TEXT, body)).status_code == 429
        seen: list[tuple[int, int]] = []

        async def before(count: int) -> None:
            seen.append((admission.active, admission.queued_tokens))

        pace(app, before)
        assert (await app.post(TEXT, body)).status_code == 200
        assert seen[0] == (8, 4) and admission.active == admission.queued_tokens == 0


@pytest.mark.parametrize(
    ("finish", "status"),
    [(pb.INVALID, 400), (pb.ERROR, 500), (pb.DEADLINE, 504), (pb.QUEUE_TIMEOUT, 429), (pb.CANCELLED, 503)],
)
@pytest.mark.parametrize("prompt", ["lo", ["lo", "he"]], ids=["one", "two"])
async def test_a_search_that_fails_is_an_error_of_the_whole_request(
    finish: pb.FinishReason, status: int, prompt: Any
) -> None:
    async with serve() as app:

        async def generate(request: pb.Generate) -> Any:
            yield pb.RequestEvent(finish=finish, error="told to fail")

        app.engine.generate = generate  # type: ignore[method-assign]
        response = await app.post(TEXT, BODIES[TEXT] | {"n": 3, "prompt": prompt})
        assert response.status_code == status
        assert app.gateway.admission.active == 0


async def test_an_engine_that_fails_or_dies_ends_the_search() -> None:
    async with serve() as app:
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 3, "prompt": [FAIL]})).status_code == 500
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 0
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 3})).status_code == 503
        assert app.engine.open == app.gateway.admission.active == 0


async def test_a_search_is_one_request_whose_tokens_come_at_once() -> None:
    async with serve(enable_per_request_metrics=True) as app:
        app.gateway.metrics.engine_ready(0, app.engine.description, 63)  # type: ignore[arg-type]
        answer = (await app.post(TEXT, BODIES[TEXT])).json()
        assert answer["metrics"]["mean_itl_ms"] is None and answer["metrics"]["time_to_first_token_ms"] >= 0
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 2, "best_of": 4})).json()["metrics"] is None
        value = app.gateway.metrics.registry.get_sample_value
        assert value("tgi_request_count_total") == value("tgi_request_success_total") == 2
        assert value("tgi_request_generated_tokens_sum") == 6 + (6 + 5)
        assert value("textgen_time_to_first_token_seconds_count") == 2
        assert value("textgen_inter_token_seconds_count") == 0
        labels = {"model_name": "mock/model", "engine": "0"}
        assert value("vllm:request_time_per_output_token_seconds_count", labels) == 0
        assert value("vllm:request_params_n_sum", labels) == 3


async def test_what_the_server_adds_to_a_request_is_added_once() -> None:
    async with serve(api_key="a\nb") as app:
        for fields in ({"n": 3}, {"use_beam_search": False}):
            body = {**BODIES[TEXT], "cache_salt": "mine", **fields}
            await app.http.post(TEXT, json=body, headers={"authorization": "Bearer a"})
        searched, sampled = app.engine.requests
        assert searched.cache_salt == sampled.cache_salt != b"mine"


async def test_long_beams_are_copied_and_become_text_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    push = output._push

    def spy(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return push(*arguments)

    monkeypatch.setattr(output, "_push", spy)
    async with serve([5], max_total_tokens=1000) as app:
        response = await app.post(TEXT, BODIES[TEXT] | {"n": 3, "max_tokens": LONG + 1})
        assert response.json()["usage"]["completion_tokens"] == 3 * (LONG + 1)
        assert len(threads) == 3 and threading.main_thread() not in threads


async def test_the_documented_body_says_what_early_stopping_may_be() -> None:
    async with serve() as app:
        paths = (await app.http.get("/api-doc/openapi.json")).json()["paths"]
        for path in BODIES:
            fields = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert fields["early_stopping"]["anyOf"][:2] == [{"type": "boolean"}, {"const": "never", "type": "string"}]
            assert (fields["length_penalty"]["anyOf"][0]["minimum"], fields["use_beam_search"]["anyOf"][0]["type"]) == (
                -10,
                "boolean",
            )
