"""`/v1/embeddings`: OpenAI's fields and vLLM's, over an engine whose vectors are known functions of the ids."""

import asyncio
import base64
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from gateway.routes.openai import embeddings
from gateway.routes.openai.embeddings import UNSUPPORTED, EmbeddingRequest
from gateway.routes.openai.responses import Embeddings
from gateway.routes.openai.unsupported import HINTS
from tests.engine_mock import embedding_of
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.toys import FAIL_TEXT, byte_level

PATH = "/v1/embeddings"
OPENAI_3_54 = "dimensions encoding_format input model user"
VLLM_0_33 = """
    add_special_tokens cache_salt dimensions embed_dtype encoding_format endianness input mm_processor_kwargs model
    normalize padding priority request_id truncate_prompt_tokens truncation_side use_activation user
"""
VLLM_0_33_CHAT = "media_io_kwargs messages"  # the others are details of `messages`
SGLANG_0_5_23 = "dimensions encoding_format input lora_path model priority rid user"


def ids(text: str) -> list[int]:
    return list(byte_level().encode(text, add_special_tokens=True).ids)


def unit(prompt: list[int], dimensions: int | None = None) -> np.ndarray:
    vector = np.frombuffer(embedding_of(prompt), "<f4")[:dimensions].astype(np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def raw(prompt: list[int]) -> np.ndarray:
    return np.frombuffer(embedding_of(prompt), "<f4")


async def embedded(app: ServedApp, **fields: Any) -> list[np.ndarray]:
    response = await app.post(PATH, fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    Embeddings.model_validate(answer, strict=True)  # as documented
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [np.array(each["embedding"], np.float32) for each in answer["data"]]


async def test_a_text_is_a_vector_of_unit_length() -> None:
    async with serve() as app:
        response = await app.post(PATH, input="hello world", model="mock/model")
        answer = response.json()
        np.testing.assert_array_equal(np.array(answer["data"][0]["embedding"], np.float32), unit(ids("hello world")))
        assert answer["usage"] == {
            "prompt_tokens": len(ids("hello world")),
            "total_tokens": len(ids("hello world")),
            "completion_tokens": 0,
        }
        assert (answer["object"], answer["model"]) == ("list", "mock/model")
        [request] = app.engine.requests
        assert (request.pooling, request.max_new_tokens, request.sampling.temperature) == ("last", 1, 0.0)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        (["lo", "he", "lo"], [ids("lo"), ids("he"), ids("lo")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_inputs_are_answered_in_their_order(given: Any, prompts: list[list[int]]) -> None:
    async with serve() as app:
        for vector, prompt in zip(await embedded(app, input=given), prompts, strict=True):
            np.testing.assert_array_equal(vector, unit(prompt))


async def test_base64_is_float32_little_endian() -> None:
    async with serve() as app:
        [entry] = (await app.post(PATH, input="lo", encoding_format="base64")).json()["data"]
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(entry["embedding"]), "<f4"), unit(ids("lo")))


async def test_fewer_dimensions_are_the_first_of_unit_length_again() -> None:
    async with serve() as app:
        [vector] = await embedded(app, input="lo", dimensions=2)
        np.testing.assert_array_equal(vector, unit(ids("lo"), 2))


@pytest.mark.parametrize("field", ["normalize", "use_activation"])
async def test_hidden_states_as_they_are(field: str) -> None:
    async with serve() as app:
        [vector] = await embedded(app, input="lo", **{field: False})
        np.testing.assert_array_equal(vector, raw(ids("lo")))


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, [8, 9]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [5, 6]),
        ({"truncate_prompt_tokens": -1}, [5, 6, 7, 8, 9]),
    ],
)
async def test_long_inputs_are_cut_if_asked(fields: dict[str, Any], kept: list[int]) -> None:
    async with serve() as app:
        await embedded(app, input=[5, 6, 7, 8, 9], **fields)
        assert [list(request.prompt) for request in app.engine.requests] == [kept]


async def test_minus_one_cuts_to_what_fits() -> None:
    async with serve(max_total_tokens=16) as app:
        await embedded(app, input=list(range(1, 41)), truncate_prompt_tokens=-1)
        assert [list(request.prompt) for request in app.engine.requests] == [list(range(26, 41))]


async def test_many_inputs_take_turns_with_few_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "AT_ONCE", 4)
    async with serve() as app:
        most, original = 0, app.engine.generate

        async def counted(request: Any) -> Any:
            nonlocal most
            async with aclosing(original(request)) as events:
                async for event in events:
                    most = max(most, app.engine.open)
                    assert app.gateway.admission.active == 4
                    assert app.gateway.admission.queued_tokens <= 4 * 2  # those that wait for a permit wait for nothing
                    await asyncio.sleep(0)
                    yield event

        monkeypatch.setattr(app.engine, "generate", counted)
        texts = [[1 + number % 200, 7] for number in range(300)]
        for vector, prompt in zip(await embedded(app, input=texts), texts, strict=True):
            np.testing.assert_array_equal(vector, unit(prompt))
        assert most == 4
        assert app.gateway.admission.active == 0


async def test_an_adapter_embeds_by_its_name() -> None:
    async with serve(adapters=("mine=org/mine",)) as app:
        answer = (await app.post(PATH, input="lo", model="mine")).json()
        assert (answer["model"], app.engine.requests[0].adapter) == ("mine", "mine")


async def test_a_time_limit_holds_for_all_inputs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(request_timeout=0.2) as app:

        async def slow(request: Any) -> Any:
            await asyncio.sleep(10)
            yield request

        monkeypatch.setattr(app.engine, "generate", slow)
        response = await app.post(PATH, input=["lo", "he"])
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert app.gateway.admission.active == 0


async def test_an_input_that_fails_ends_the_request() -> None:
    async with serve() as app:
        response = await app.post(PATH, input=["lo", FAIL_TEXT, "he"], add_special_tokens=False)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")
        assert app.gateway.admission.active == app.engine.open == 0


async def test_embeddings_count_no_generated_tokens() -> None:
    async with serve() as app:
        await embedded(app, input=["lo", "he"])
        lines = (await app.http.get("/metrics")).text.splitlines()
        values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
        assert values["tgi_request_success"] == 1
        assert values["tgi_request_mean_time_per_token_duration_count"] == 0
        assert values["tgi_request_duration_count"] == 1


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, ["input"]),
        ({"input": []}, ["input", "empty"]),
        ({"input": ["lo", [5]]}, ["input", "either texts or lists"]),
        ({"input": [[]]}, ["input", "none of them empty"]),
        ({"input": ["lo"] * 2049}, ["input", "2048", "2049"]),
        ({"input": [5, 999]}, ["input", "999", "319"]),
        ({"input": list(range(1, 70))}, ["input", "63 tokens", "69"]),
        ({"input": "lo", "dimensions": 5}, ["dimensions", "5", "4"]),
        ({"input": "lo", "dimensions": 0}, ["dimensions"]),
        ({"input": "lo", "encoding_format": "bytes"}, ["encoding_format", "base64"]),
        ({"input": "lo", "embed_dtype": "float16"}, ["embed_dtype"]),
        ({"input": "lo", "endianness": "big"}, ["endianness"]),
        ({"input": "lo", "messages": []}, ["messages"]),
        ({"input": "lo", "truncate_prompt_tokens": 0}, ["truncate_prompt_tokens"]),
        ({"input": "lo", "request_id": "a b"}, ["request_id"]),
    ],
)
async def test_refusals_name_field_and_limit(fields: dict[str, Any], parts: list[str]) -> None:
    async with serve() as app:
        response = await app.post(PATH, fields)
        assert response.status_code == 400, response.text
        assert all(part in response.json()["error"]["message"] for part in parts), response.text
        assert not app.engine.requests and app.gateway.admission.active == 0


async def test_an_unknown_model_is_a_404() -> None:
    async with serve() as app:
        assert (await app.post(PATH, input="lo", model="other")).json()["error"]["code"] == "model_not_found"


async def test_a_model_without_embeddings_says_so() -> None:
    async with serve(pooling="") as app:
        response = await app.post(PATH, input="lo")
        assert response.status_code == 400
        assert "makes no embeddings" in response.json()["error"]["message"]


@pytest.mark.parametrize("fields", [OPENAI_3_54, VLLM_0_33, VLLM_0_33_CHAT, SGLANG_0_5_23])
def test_a_known_field_is_declared_refused_or_a_hint(fields: str) -> None:
    declared = {field.alias or name for name, field in EmbeddingRequest.model_fields.items()}
    assert set(fields.split()) <= declared | UNSUPPORTED.keys() | HINTS
    assert not declared & UNSUPPORTED.keys()
