"""`/v2/models/{model}/generate` and `/generate_stream`: tensors as plain fields, in TensorRT-LLM's and vLLM's words."""

import asyncio
import json
from typing import Any

import pytest

from gateway.http.encoding import json_bytes
from gateway.routes.kserve import text_answer
from gateway.routes.kserve.responses import Generated
from gateway.routes.openai import common
from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import HELLO, Callers, ServedApp, events, serve

PATH = "/v2/models/ensemble/generate"
STREAM = PATH + "_stream"
HEAD = {"model_name": "ensemble", "model_version": "1"}
PIECES = ["hel", "lo", " w", "or", "ld", ""]  # the last one is EOS


async def generated(app: ServedApp, **fields: Any) -> dict[str, Any]:
    response = await app.post(PATH, fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    Generated.model_validate(answer, strict=True)  # as documented
    return answer


async def test_the_example_of_tensorrt_llm() -> None:
    async with serve() as app:
        answer = await generated(app, text_input="lo", max_tokens=3, bad_words="", stop_words="")
        assert answer == {**HEAD, "text_output": "lohello w"}
        assert app.engine.requests[0].sampling.temperature == 0


async def test_the_example_of_vllm() -> None:
    async with serve() as app:
        parameters = {"stream": False, "temperature": 0, "exclude_input_in_output": True, "max_tokens": "3"}
        answer = await generated(app, text_input="lo", parameters=parameters, id="42")
        assert answer == {"id": "42", **HEAD, "text_output": "hello w"}


async def test_several_values_are_a_list() -> None:
    async with serve() as app:
        answer = await generated(app, text_input="lo", num_return_sequences=2, temperature=1, stop_words=["x", "y"])
        assert answer["text_output"] == ["lohello world"] * 2


async def test_the_companions_answer_flat_lists() -> None:
    async with serve() as app:
        tokens = (await app.post("/v2/models/ensemble_tokenizer/generate", TEXT="lo")).json()
        assert tokens == {**HEAD, "model_name": "ensemble_tokenizer", "input_ids": [319, 260], "attention_mask": [1, 1]}
        logits = (await app.post("/v2/models/ensemble_logits/generate", input_ids=tokens["input_ids"])).json()
        assert len(logits["logits"]) == 2 * 320


async def test_a_stream_has_what_is_new_and_no_mark_at_its_end() -> None:
    async with serve() as app:
        response = await app.post(STREAM, text_input="lo", stream=True, id="7", return_finish_reason=True)
        found = events(response)
        assert [each["text_output"] for each in found] == PIECES
        assert [each["finish_reason"] for each in found] == ["None"] * 5 + ["stop"]
        assert all(each["id"] == "7" for each in found)


async def test_of_several_sequences_a_stream_has_a_value_for_each() -> None:
    async with serve() as app:
        found = events(await app.post(STREAM, text_input="lo", stream=True, num_return_sequences=2, temperature=1))
        texts = [each["text_output"] for each in found]
        assert ["".join(parts) for parts in zip(*texts, strict=True)] == ["hello world"] * 2
        assert len(found) == 2 * len(PIECES)


async def test_without_stream_the_only_event_is_the_whole_answer() -> None:
    async with serve() as app:
        assert events(await app.post(STREAM, text_input="lo")) == [{**HEAD, "text_output": "lohello world"}]


async def test_sums_of_logprobs_go_on_through_a_stream() -> None:
    async with serve() as app:
        found = events(await app.post(STREAM, text_input="lo", stream=True, max_tokens=3, return_log_probs=True))
        assert [each["cum_log_probs"] for each in found] == [-0.25, -0.5, -0.75]
        assert [each["output_log_probs"] for each in found] == [-0.25] * 3


async def test_many_alternatives_of_a_stream_are_listed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole vocabulary beside each token takes 0.2 s a token, in which all streams would stand still."""
    monkeypatch.setattr(common, "MANY", 1)
    callers = Callers(monkeypatch, json_bytes, text_answer)
    async with serve() as app:
        fields = {"text_input": "lo", "stream": True, "max_tokens": 2, "return_logprobs": True, "logprobs": 2}
        found = events(await app.post(STREAM, fields))
        assert [len(json.loads(each["logprobs"])) for each in found] == [1, 1]
    assert callers.beside_the_event_loop


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "'text_input' is missing"),
        ({"text_input": None}, "'text_input' holds a value that is not BYTES"),
        ({"text_input": {"a": 1}}, "'text_input' holds a value that is not BYTES"),
        ({"text_input": ["a", "b"]}, "takes one value, given 2"),
        ({"text_input": "lo", "max_tokens": 1.5}, "'max_tokens' holds a value that is not INT32"),
        ({"text_input": "lo", "max_tokens": 0}, "max_tokens must be at least 1"),
        ({"text_input": "lo", "other": {"a": 1}}, "'other' is no input of the model"),
        ({"text_input": "lo", "other": [1]}, "'other' is no input of the model"),
        ({"text_input": "lo", "parameters": [1]}, "parameters an object"),
        ({"text_input": "lo", "id": 7}, "id must be a string"),
        ({"text_input": "lo", "stream": True}, "use generate_stream"),
        ({"text_input": "lo", "max_tokens": 4000}, "2 in text_input and max_tokens 4000"),
        ({"text_input": "lo", "image": "abc"}, "image"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(fields: dict[str, Any], said: str) -> None:
    async with serve() as app:
        for path in (PATH, STREAM):
            if "generate_stream" in said and path == STREAM:
                continue
            response = await app.post(path, fields)
            assert response.status_code == 400, response.text
            assert response.json().keys() == {"error"} and said in response.json()["error"]


async def test_a_stream_never_has_the_prompt() -> None:
    async with serve() as app:
        response = await app.post(STREAM, text_input="lo", stream=True, exclude_input_in_output=False)
        assert (response.status_code, "exclude_input_in_output" in response.json()["error"]) == (400, True)


async def test_a_failure_within_a_stream_is_its_last_event() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        found = events(await app.post(STREAM, text_input="lo", stream=True))
        assert [each.get("text_output") for each in found] == [*PIECES[:2], None]
        assert found[-1] == {"error": "the engine stopped"}


async def test_a_client_that_leaves_ends_its_request() -> None:
    async with serve(HELLO * 8) as app:
        came = asyncio.Event()

        async def wait(count: int) -> None:
            if count == 2:
                came.set()
                await asyncio.Event().wait()

        pace(app, wait)
        client = Connection(app, STREAM, {"text_input": "lo", "stream": True})
        running = asyncio.create_task(client.run())
        await came.wait()
        client.leave()
        await running
        assert (len(app.engine.cancelled), app.gateway.admission.active) == (1, 0)


async def test_compressed_bodies_are_refused_as_by_triton() -> None:
    async with serve() as app:
        headers = {"content-encoding": "gzip"}
        response = await app.http.post(PATH, content=json.dumps({"text_input": "lo"}), headers=headers)
        assert response.status_code == 415
