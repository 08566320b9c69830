"""TGI's routes as its clients see them: shapes, key order, framing, headers, endings."""

import json
from typing import Any

import pytest

from gateway.engine.interface import ReplicaStatus
from gateway.routes.tgi import answers
from gateway.routes.tgi.responses import Info
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer
from tests.engine_mock import EOS, continuation
from tests.gateway.fixtures import HELLO, Callers, events, serve
from tests.gateway.toys import BOS, FAIL_TEXT, byte_level

BACKEND = byte_level()


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def token(id: int, text: str, special: bool = False) -> dict[str, Any]:
    return {"id": id, "text": text, "logprob": -0.25, "special": special}


WORLD = [token(id, text) for id, text in zip(HELLO, ["hel", "lo", " w", "or", "ld"], strict=False)]


async def test_generate_answers_the_text_alone() -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs="hello")
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.text == '{"generated_text":"hello world"}'


async def test_details_are_as_in_tgi_key_by_key() -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs="hello", parameters={"details": True})
        details = {
            "finish_reason": "eos_token",
            "generated_tokens": 6,
            "seed": None,
            "prefill": [],
            "tokens": [*WORLD, token(EOS, "</s>", special=True)],
        }
        assert response.text == json.dumps(
            {"generated_text": "hello world", "details": details}, separators=(",", ":"), ensure_ascii=False
        )


async def test_prefill_lists_the_prompt_only_where_the_server_allows_it() -> None:
    asked = {"decoder_input_details": True, "max_new_tokens": 1}
    async with serve() as app:
        answer = (await app.post("/generate", inputs="lo", parameters=asked)).json()
        assert answer["details"]["prefill"] == []
    async with serve(enable_prefill_logprobs=True) as app:
        answer = (await app.post("/generate", inputs="lo", parameters=asked)).json()
        assert answer["details"]["prefill"] == [
            {"id": BOS, "text": "<s>", "logprob": None},
            {"id": ids("lo")[0], "text": "lo", "logprob": -0.5},
        ]


async def test_top_tokens_stand_beside_the_tokens() -> None:
    async with serve() as app:
        parameters = {"details": True, "top_n_tokens": 2, "max_new_tokens": 1}
        details = (await app.post("/generate", inputs="hello", parameters=parameters)).json()["details"]
        [alternatives] = details["top_tokens"]
        assert [each["logprob"] for each in alternatives] == [-0.25, -0.5]
        assert alternatives[0] == WORLD[0]
        assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"]


async def test_best_of_answers_the_likeliest_and_lists_the_others() -> None:
    async with serve() as app:
        parameters = {"best_of": 2, "do_sample": True, "details": True}
        response = await app.post("/generate", inputs="hello", parameters=parameters)
        answer = response.json()
        [other] = answer["details"]["best_of_sequences"]
        assert response.headers["x-prompt-tokens"] == str(len(app.engine.requests[0].prompt)), "of one sequence"
        assert response.headers["x-generated-tokens"] == str(answer["details"]["generated_tokens"])
        assert list(other) == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
        seeds = [request.sampling.seed for request in app.engine.requests]
        assert len(set(seeds)) == 2
        assert {answer["details"]["seed"], other["seed"]} == set(seeds)


async def test_the_root_answers_an_array_with_the_full_text() -> None:
    async with serve() as app:
        assert (await app.post("/", inputs="lo ")).text == '[{"generated_text":"lo hello world"}]'
        answer = await app.post("/", inputs="lo ", parameters={"return_full_text": False})
        assert answer.json() == [{"generated_text": "hello world"}]


async def test_the_root_streams_when_told_to() -> None:
    async with serve() as app:
        stream = events(await app.post("/", inputs="lo ", stream=True))
        assert stream[-1]["generated_text"] == "lo hello world"


async def test_stream_bytes_are_exact() -> None:
    async with serve() as app:
        response = await app.post("/generate_stream", inputs="lo", parameters={"details": True, "max_new_tokens": 2})
        assert (
            response.content
            == (
                f'data: {{"index":1,"token":{{"id":{HELLO[0]},"text":"hel","logprob":-0.25,"special":false}},'
                '"generated_text":null,"details":null}\n\n'
                f'data: {{"index":2,"token":{{"id":{HELLO[1]},"text":"lo","logprob":-0.25,"special":false}},'
                '"generated_text":"hello","details":{"finish_reason":"length","generated_tokens":2,"seed":null,'
                '"input_length":2}}\n\n'
            ).encode()
        )


async def test_streams_end_with_the_text_and_null_details_unless_asked() -> None:
    async with serve() as app:
        stream = events(await app.post("/generate_stream", inputs="lo"))
        assert [event["index"] for event in stream] == [1, 2, 3, 4, 5, 6]
        assert [event["token"] for event in stream] == [*WORLD, token(EOS, "</s>", special=True)]
        assert [event["generated_text"] for event in stream] == [None] * 5 + ["hello world"]
        assert all(event["details"] is None for event in stream)
        assert all(list(event) == ["index", "token", "generated_text", "details"] for event in stream)


async def test_streamed_top_tokens_follow_the_token() -> None:
    async with serve() as app:
        stream = events(await app.post("/generate_stream", inputs="lo", parameters={"top_n_tokens": 1}))
        assert all(list(each) == ["index", "token", "top_tokens", "generated_text", "details"] for each in stream)


async def test_a_character_over_several_tokens_streams_when_it_is_whole() -> None:
    async with serve([*ids("é"), EOS]) as app:
        stream = events(await app.post("/generate_stream", inputs="lo"))
        assert [event["token"]["text"] for event in stream] == ["", "é", "</s>"]
        assert stream[-1]["generated_text"] == "é"


async def test_text_cut_inside_a_character_is_not_lost() -> None:
    async with serve(ids("lo é")[:-1]) as app:
        answer = (await app.post("/generate", inputs="lo", parameters={"max_new_tokens": 3})).json()
        assert answer["generated_text"] == "lo \ufffd"


@pytest.mark.parametrize(
    ("stop", "text"), [(["world"], "hello world"), (["o w"], "hello w"), (["ell"], "hell"), (["wo", "o"], "hello")]
)
async def test_stop_strings_are_found_anywhere_and_stay_in_the_text(stop: list[str], text: str) -> None:
    async with serve() as app:
        parameters = {"stop": stop, "details": True}
        answer = (await app.post("/generate", inputs="lo", parameters=parameters)).json()
        assert answer["generated_text"] == text
        assert answer["details"]["finish_reason"] == "stop_sequence"
        assert "".join(each["text"] for each in answer["details"]["tokens"]) == text
        stream = events(await app.post("/generate_stream", inputs="lo", parameters=parameters))
        assert "".join(event["token"]["text"] for event in stream) == text == stream[-1]["generated_text"]
        assert app.engine.cancelled == [1, 2]


async def test_length_is_named_before_eos_and_stop() -> None:
    async with serve() as app:
        for parameters in ({"max_new_tokens": 6}, {"max_new_tokens": 5, "stop": ["world"]}):
            answer = (await app.post("/generate", inputs="lo", parameters={"details": True, **parameters})).json()
            assert answer["details"]["finish_reason"] == "length"
            assert answer["generated_text"] == "hello world"


@pytest.mark.parametrize(
    ("parameters", "sampled"),
    [
        (None, True),
        ({}, False),
        ({"do_sample": True}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 0.5}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.5}, True),
        ({"typical_p": 0.5}, True),
        ({"seed": 3}, False),
        ({"repetition_penalty": 1.2}, False),
    ],
)
async def test_what_turns_sampling_on(parameters: dict[str, Any] | None, sampled: bool) -> None:
    async with serve() as app:
        body = {"inputs": "lo"} | ({} if parameters is None else {"parameters": {**parameters, "details": True}})
        answer = (await app.post("/generate", body)).json()
        [request] = app.engine.requests
        assert (request.sampling.temperature > 0) is sampled
        if parameters is not None:
            assert (answer["details"]["seed"] is not None) is sampled


async def test_sampling_means_what_it_means_in_tgi() -> None:
    async with serve() as app:
        parameters = {
            "temperature": 0.5, "top_k": 5, "top_p": 0.75, "typical_p": 0.25, "repetition_penalty": 1.5,
            "frequency_penalty": -1.0, "seed": 2**64 - 1, "top_n_tokens": 3, "max_new_tokens": 4,
        }  # fmt: skip
        await app.post("/generate", inputs="lo", parameters=parameters)
        [request] = app.engine.requests
        sampling = request.sampling
        for name in ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "seed"):
            assert getattr(sampling, name) == parameters[name]
        assert (sampling.top_logprobs, request.max_new_tokens) == (3, 4)
        assert sampling.frequency_over_length
        assert sampling.processed_logprobs
        assert list(request.prompt) == [BOS, *ids("lo")]


async def test_a_watermark_has_the_servers_strength() -> None:
    async with serve(watermark_gamma=0.25, watermark_delta=4.0) as app:
        for watermark in (True, False):
            await app.post("/generate", inputs="lo", parameters={"watermark": watermark})
        strengths = [(each.sampling.watermark_gamma, each.sampling.watermark_delta) for each in app.engine.requests]
        assert strengths == [(0.25, 4.0), (0.0, 0.0)]


async def test_new_tokens_default_to_the_rest_of_the_context_and_never_exceed_it() -> None:
    async with serve(max_total_tokens=2000) as app:
        await app.post("/generate", inputs="lo")
        await app.post("/generate", inputs="lo", parameters={"max_new_tokens": 5000})
        assert [request.max_new_tokens for request in app.engine.requests] == [1998, 1998]


@pytest.mark.parametrize("times", [1, 10_000])
async def test_truncate_keeps_the_end(times: int) -> None:
    async with serve() as app:
        await app.post("/generate", inputs="hello world" * times, parameters={"truncate": 2})
        [request] = app.engine.requests
        assert list(request.prompt) == ids("hello world")[-2:]


async def test_answers_equal_the_engines_tokens_decoded_at_once() -> None:
    tokenizer = Tokenizer(byte_level())
    async with serve([]) as app:
        for text in ("hello", "world", "lo lo lo", "é"):
            parameters = {"max_new_tokens": 30, "details": True}
            answer = (await app.post("/generate", inputs=text, parameters=parameters)).json()
            expected = continuation([BOS, *ids(text)], 30)
            assert [each["id"] for each in answer["details"]["tokens"]] == expected
            detokenizer = Detokenizer(tokenizer, [BOS, *ids(text)], skip_special_tokens=True)
            assert answer["generated_text"] == "".join(map(detokenizer.push, expected)) + detokenizer.flush()


async def test_timing_headers() -> None:
    async with serve() as app:
        headers = (await app.post("/generate", inputs="hé")).headers
        assert headers["x-compute-type"] == "1-mock"
        assert headers["x-compute-characters"] == "2"
        assert headers["x-prompt-tokens"] == "4"
        assert headers["x-generated-tokens"] == "6"
        assert float(headers["x-compute-time"]) > 0
        for name in ("total", "validation", "queue", "inference"):
            assert headers[f"x-{name}-time"].isdigit()
        assert headers["x-time-per-token"].isdigit()


async def test_stream_headers() -> None:
    async with serve() as app:
        headers = (await app.post("/generate_stream", inputs="hello")).headers
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
        assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("1-mock", "5")
        assert "content-length" not in headers


async def test_the_operator_may_say_what_computes() -> None:
    async with serve(compute_type="8-h200") as app:
        for path in ("/generate", "/generate_stream"):
            assert (await app.post(path, inputs="hello")).headers["x-compute-type"] == "8-h200"


async def test_info_tells_the_model_and_every_limit() -> None:
    async with serve(max_best_of=3, max_input_tokens=40) as app:
        info = (await app.http.get("/info")).json()
        assert info["model_id"] == "mock/model"
        assert info["model_sha"] == "0123abc"
        assert (info["max_best_of"], info["max_input_tokens"], info["max_total_tokens"]) == (3, 40, 64)
        assert info["speculate"] == 0
        expected = {"model_pipeline_tag", "max_concurrent_requests", "max_stop_sequences", "validation_workers"}
        assert expected <= set(info)


async def test_info_tells_what_each_of_several_engines_does() -> None:
    async with serve() as app:
        first = ReplicaStatus(0, "ready", "1 x NVIDIA H200", waiting=2, running=3, kv=0.25)
        app.engine.replicas = [first]
        alone = (await app.http.get("/info")).json()
        app.engine.replicas = [first, ReplicaStatus(1, "starting", "", waiting=0, running=0, kv=0.0)]
        several = (await app.http.get("/info")).json()
    Info.model_validate(several, strict=True)
    assert "replicas" not in alone
    assert several.pop("replicas") == [
        {"index": 0, "state": "ready", "devices": "1 x NVIDIA H200", "waiting": 2, "running": 3, "kv": 0.25},
        {"index": 1, "state": "starting", "devices": "", "waiting": 0, "running": 0, "kv": 0.0},
    ]
    assert several == alone


async def test_info_tells_how_many_draft_tokens_the_engine_verifies() -> None:
    async with serve(tokens_per_step=4) as app:
        assert (await app.http.get("/info")).json()["speculate"] == 3


async def test_a_failure_before_the_first_token_has_a_real_status_in_streams_too() -> None:
    async with serve() as app:
        app.engine.unavailable = "the engine stopped"
        for path in ("/generate", "/generate_stream"):
            response = await app.post(path, inputs="lo")
            assert response.status_code == 503
            assert response.headers["retry-after"] == "5"
            assert response.json() == {"error": "the engine stopped", "error_type": "unavailable"}


async def test_a_failure_in_mid_stream_is_its_last_event() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        stream = events(await app.post("/generate_stream", inputs="lo"))
        assert [event.get("index") for event in stream] == [1, 2, None]
        assert stream[-1] == {"error": "the engine stopped", "error_type": "unavailable"}


async def test_a_failure_of_the_engine_is_424() -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs=FAIL_TEXT, parameters={"truncate": 1})
        assert response.status_code == 424
        assert response.json() == {
            "error": "Request failed during generation: told to fail",
            "error_type": "generation",
        }


async def test_overload_is_429_with_retry_after() -> None:
    async with serve() as app:
        admission = app.gateway.admission
        with admission.request(admission.max_requests):
            for path in ("/generate", "/generate_stream"):
                response = await app.post(path, inputs="lo")
                assert response.status_code == 429
                assert response.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
                assert int(response.headers["retry-after"]) >= 1


async def test_permits_come_back_after_every_kind_of_end() -> None:
    async with serve() as app:
        await app.post("/generate", inputs="lo")
        await app.post("/generate", inputs="", parameters={})
        await app.post("/generate_stream", inputs="lo")
        app.engine.unavailable, app.engine.die_after = "gone", 1
        await app.post("/generate_stream", inputs="lo")
        assert app.gateway.admission.active == 0
        assert app.gateway.admission.queued_tokens == 0
        assert app.engine.open == 0


@pytest.mark.parametrize("asked", [{"details": True, "top_n_tokens": 2}, {"decoder_input_details": True}])
async def test_long_details_are_worded_beside_the_event_loop(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = Callers(monkeypatch, answers.generation, answers)
    async with serve() as app:
        assert (await app.post("/generate", inputs="hello", parameters=asked)).status_code == 200
    assert callers.beside_the_event_loop
