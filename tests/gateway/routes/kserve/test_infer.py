"""`/v2/models/{model}/infer` over a known engine: what each model makes of its inputs, and what is refused."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from tests.engine_mock import VOCABULARY, logits_of
from tests.gateway.asgi_client import pace
from tests.gateway.fixtures import serve
from tests.gateway.routes.kserve.asking import IDS, TEXT, infer, path, refused, tensor
from tests.gateway.toys import byte_level
from tests.processes import PATIENCE, until


async def test_a_text_is_answered_behind_its_prompt() -> None:
    async with serve() as app:
        response = await app.post(path("mock/model"), {"id": "7", "inputs": [TEXT]})
        assert response.json() == {
            "model_name": "mock/model",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["lohello world"]}],
        }
        assert await infer(app, "mock/model", TEXT, tensor("exclude_input_in_output", "BOOL", True)) == {
            "text_output": ["hello world"]
        }


@pytest.mark.parametrize("name", ["mine", "other", "ensemble", "tensorrt_llm_bls", "vllm_model"])
async def test_a_model_has_every_name_of_it_and_so_have_its_companions(name: str) -> None:
    async with serve(served_model_name=("mine", "other")) as app:
        assert (await infer(app, name, TEXT))["text_output"] == ["lohello world"]
        assert (await infer(app, f"{name}_tokenizer", tensor("TEXT", "BYTES", "lo")))["attention_mask"] == [1, 1]
        assert len((await infer(app, f"{name}_logits", IDS))["logits"]) == 3 * VOCABULARY


@pytest.mark.parametrize(("version", "status"), [("1", 200), ("2", 404), ("01", 404), ("-1", 200)])
async def test_a_version_is_1_or_the_newest(version: str, status: int) -> None:
    async with serve() as app:
        response = await app.post(f"/v2/models/mock/model/versions/{version}/infer", {"inputs": [TEXT]})
        assert response.status_code == status


async def test_an_adapter_is_a_model_too() -> None:
    async with serve(adapters=("mine=org/a",)) as app:
        await infer(app, "mine", TEXT)
        await infer(app, "mock/model", TEXT, parameters={"lora_name": "mine"})
        assert [each.adapter for each in app.engine.requests] == ["mine", "mine"]
        assert "does not exist" in await refused(app, "yours", TEXT, status=404)


async def test_tensorrt_llms_inputs_become_sampling_parameters() -> None:
    inputs = [
        TEXT,
        tensor("max_tokens", "INT32", 9),
        tensor("min_length", "UINT32", 2),
        tensor("top_k", "INT32", 5),
        tensor("top_p", "FP32", 0.6),
        tensor("temperature", "FP32", 0.7),
        tensor("repetition_penalty", "FP32", 1.1),
        tensor("presence_penalty", "FP32", 0.2),
        tensor("frequency_penalty", "FP32", 0.3),
        tensor("seed", "UINT64", 11),
        tensor("num_return_sequences", "INT32", 2),
        tensor("bad_words", "BYTES", "a", ""),
        tensor("stop_words", "BYTES", "zz", ""),
        tensor("pad_id", "INT32", 3),
    ]
    async with serve() as app:
        assert await infer(app, "ensemble", *inputs) == {"text_output": ["lohello world"] * 2}
        asked = app.engine.requests[0]
        sampling = asked.sampling
        floats = ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        values = [round(getattr(sampling, name), 6) for name in floats]
        assert values == [0.7, 0.6, 1.1, 0.2, 0.3]
        assert (asked.max_new_tokens, asked.min_new_tokens, sampling.top_k, sampling.seed) == (9, 2, 5, 11)
        assert len(sampling.bad_words) == 2  # "a" and " a"


async def test_without_any_sampling_field_tokens_are_chosen_greedily_unless_vllms_are_given() -> None:
    async with serve() as app:
        await infer(app, "ensemble", TEXT)
        await infer(app, "ensemble", TEXT, tensor("top_p", "FP32", 0.5))
        await infer(app, "ensemble", TEXT, tensor("sampling_parameters", "BYTES", '{"max_tokens": 3}'))
        assert [each.sampling.temperature for each in app.engine.requests] == [0.0, 1.0, 1.0]


async def test_vllms_sampling_parameters_may_be_texts_and_count_behind_inputs() -> None:
    given = {"max_tokens": "3", "temperature": "0.5", "ignore_eos": "True", "stop": "zz", "top_k": 4, "seed": "7"}
    async with serve() as app:
        parameters = {"temperature": 0.1, "min_p": "0.25"}
        sampling_parameters = tensor("sampling_parameters", "BYTES", json.dumps(given))
        await infer(app, "vllm_model", TEXT, sampling_parameters, tensor("top_k", "INT32", 2), parameters=parameters)
        [asked] = app.engine.requests
        assert (asked.max_new_tokens, asked.ignore_eos, asked.sampling.seed) == (3, True, 7)
        assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.min_p) == (0.5, 2, 0.25)


@pytest.mark.parametrize(
    ("end", "stops", "ignores"), [(0, [], False), (-1, [], True), (7, [7], True)], ids=["its own", "none", "another"]
)
async def test_end_id_is_the_only_token_that_ends_a_text(end: int, stops: list[int], ignores: bool) -> None:
    async with serve() as app:
        await infer(app, "ensemble", TEXT, tensor("end_id", "INT32", end))
        [asked] = app.engine.requests
        assert ([*asked.stop_token_ids], asked.ignore_eos) == (stops, ignores)


async def test_a_beam_search_answers_all_of_its_beams() -> None:
    async with serve() as app:
        neutral = (tensor("temperature", "FP32", 1.0), tensor("top_k", "INT32", 1))
        width = tensor("beam_width", "INT32", 3)
        assert len((await infer(app, "ensemble", TEXT, width, *neutral))["text_output"]) == 3
        best = await infer(app, "ensemble", TEXT, width, tensor("num_return_sequences", "INT32", 1))
        assert best["text_output"] == ["lohello world"]
        assert [(each.beam_search.width, each.beam_search.answers) for each in app.engine.requests] == [(3, 3), (3, 1)]


async def test_the_text_can_be_made_to_match() -> None:
    async with serve() as app:
        for kind, guide in (("regex", "a+"), ("json_schema", '{"type": "object"}'), ("ebnf_grammar", 'root ::= "a"')):
            guided = (
                tensor("guided_decoding_guide_type", "BYTES", kind),
                tensor("guided_decoding_guide", "BYTES", guide),
            )
            await infer(app, "ensemble", TEXT, *guided)
        await infer(app, "ensemble", TEXT, tensor("guided_decoding_guide_type", "BYTES", "json"))
        kinds = [each.grammar.WhichOneof("kind") for each in app.engine.requests]
        assert kinds == ["regex", "json_schema", "gbnf", "json_schema"]
        assert "guide_type" in await refused(app, "ensemble", TEXT, tensor("guided_decoding_guide", "BYTES", "a"))


async def test_further_outputs_are_those_that_are_asked_for() -> None:
    switches = ("finish_reason", "cumulative_logprob", "logprobs", "log_probs", "num_input_tokens", "num_output_tokens")
    asked = [tensor(f"return_{name}", "BOOL", True) for name in switches]
    async with serve() as app:
        some = tensor("sampling_parameters", "BYTES", '{"logprobs": 2, "max_tokens": 2, "temperature": 0}')
        answer = await infer(app, "vllm_model", TEXT, some, *asked)
        listed = json.loads(answer.pop("logprobs")[0])
        assert answer == {
            "text_output": ["lohello"],
            "finish_reason": ["length"],
            "cumulative_logprob": [-0.5],
            "cum_log_probs": [-0.5],
            "output_log_probs": [-0.25, -0.25],
            "num_input_tokens": [2],
            "num_output_tokens": [2],
        }
        assert listed[1] == {
            "260": {"logprob": -0.25, "rank": 1, "decoded_token": "lo"},
            "261": {"logprob": -0.5, "rank": 2, "decoded_token": "hel"},
        }
        only = [{"name": "finish_reason"}, {"name": "logprobs"}]
        assert await infer(app, "vllm_model", TEXT, asked[0], outputs=only) == {"finish_reason": ["stop"]}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([{**TEXT, "name": "prompt"}], "unexpected inference input 'prompt'"),
        ([tensor("max_tokens", "INT32", 1)], "input 'text_input' is missing"),
        ([TEXT, TEXT], "'text_input' is given twice"),
        ([{**TEXT, "shape": [2], "data": ["a", "b"]}], "takes one value, given 2"),
        ([{**TEXT, "shape": [0], "data": []}], "takes one value, given 0"),
        ([{**TEXT, "datatype": "INT32", "data": [1]}], "datatype INT32, but the model takes BYTES"),
        ([TEXT, tensor("max_tokens", "FP32", 1.0)], "datatype FP32, but the model takes INT32"),
        ([TEXT, tensor("stream", "BOOL", True)], "stream asks for several responses"),
        ([TEXT, tensor("temperature", "FP32", -1.0)], "temperature: must be at least 0"),
        ([TEXT, tensor("num_return_sequences", "INT32", 99)], "num_return_sequences: must be at most 8"),
        ([TEXT, tensor("stop_words", "BYTES", *"abcdefgh")], "stop_words takes at most 4 texts"),
        ([TEXT, tensor("end_id", "INT32", 4000)], "end_id holds the token id 4000"),
        ([TEXT, tensor("beam_width", "INT32", 0)], "beam_width must be a whole number of at least 1"),
        ([TEXT, tensor("beam_width", "INT32", 99)], "beam_width: must be at most 8"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"max_tokenz": 3}')], "there is no 'max_tokenz'"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"detokenize": false}')], "detokenize is not supported"),
        ([TEXT, tensor("image", "BYTES", "abc")], "input 'image' is not supported"),
        ([TEXT, tensor("lora_task_id", "UINT64", 3)], "name the adapter as the request's model"),
        ([TEXT, tensor("sampling_parameters", "BYTES", "[1]")], "sampling_parameters must be a JSON object"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"a": 1')], "sampling_parameters is not valid JSON"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"echo": true}')], "echo is not a sampling parameter"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"adaptive_target": 2}')], "adaptive_target is not supported"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"top_k": "many"}')], "top_k: must be a whole number"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"end_id": [1]}')], "end_id must be one value"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"guided_decoding_guide_type": {}}')], "must be one value"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"max_tokens": [1]}')], "max_tokens: must be a whole number"),
        ([TEXT, tensor("sampling_parameters", "BYTES", '{"stop": {"a": 1}}')], "stop: must be"),
        ([{**TEXT, "data": None}], "has no data"),
        ([{**TEXT, "parameters": {"shared_memory_region": "a"}}], "shared memory is not supported"),
        ([{**TEXT, "parameters": {"binary_data_size": 6}}], "both data and binary_data_size"),
        ([{**TEXT, "data": None, "parameters": {"binary_data_size": 6}}], "ends behind the body"),
        ([], "inputs: must not be empty"),
    ],
)
async def test_a_wrong_input_is_refused_by_its_name(inputs: list[Any], said: str) -> None:
    async with serve() as app:
        assert said in await refused(app, "mock/model", *inputs)
        assert not app.engine.requests


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
async def test_no_model_has_a_state(name: str) -> None:
    async with serve() as app:
        assert name in await refused(app, "ensemble", TEXT, parameters={name: 1})
        await infer(app, "ensemble", TEXT, parameters={name: 0})


async def test_what_asks_for_nothing_is_taken() -> None:
    async with serve() as app:
        off = (tensor("return_context_logits", "BOOL", False), tensor("image", "BYTES", ""))
        await infer(app, "ensemble", TEXT, *off, parameters={"triton_x": 1, "headers": "a", "unknown": "b"})


async def test_a_timeout_is_in_microseconds_and_bounds_the_request() -> None:
    async with serve(request_timeout=60.0) as app:
        await infer(app, "ensemble", TEXT, parameters={"timeout": 5_000_000})
        await infer(app, "ensemble", TEXT, parameters={"timeout": 90_000_000})
        await infer(app, "ensemble", TEXT)
        limits = [each.timeout_seconds for each in app.engine.requests]
        assert 4 < limits[0] <= 5 and all(59 < each <= 60 for each in limits[1:])
        pace(app, lambda _: asyncio.sleep(0.002))
        message = await refused(app, "ensemble", TEXT, status=504, parameters={"timeout": 1})
        assert message == "the request was not finished within its timeout of 1e-06 s"
        for wrong in (-1, 2**64, "soon", True):
            assert "timeout" in await refused(app, "ensemble", TEXT, parameters={"timeout": wrong})


async def test_any_seed_of_64_bits_is_taken() -> None:
    async with serve() as app:
        for seed in (0, 2**63, 2**64 - 1):
            await infer(app, "ensemble", TEXT, tensor("random_seed", "UINT64", seed))
        assert [each.sampling.seed for each in app.engine.requests] == [0, 0, 2**63 - 1]


async def test_vllms_parameters_that_ask_for_nothing_are_taken() -> None:
    given = {"detokenize": True, "extra_args": {}, "best_of": 1, "logits_processors": [], "user": "a"}
    async with serve() as app:
        await infer(app, "vllm_model", TEXT, tensor("sampling_parameters", "BYTES", json.dumps(given)))


async def test_the_highest_priority_is_1_and_the_default_is_the_lowest() -> None:
    async with serve() as app:
        for priority in (0, 1, 2, 2**64 - 1):
            await infer(app, "ensemble", TEXT, parameters={"priority": priority})
        none, first, second, last = (each.priority for each in app.engine.requests)
        assert first < second < last == none == 0


async def test_the_tokenizer_pads_at_the_right() -> None:
    ids = [byte_level().encode(text).ids for text in ("lo", "hello world")]
    longest = max(map(len, ids))
    async with serve() as app:
        answer = await infer(app, "ensemble_tokenizer", tensor("TEXT", "BYTES", "lo", "hello world"))
        assert answer["input_ids"] == [*ids[0], *[0] * (longest - len(ids[0])), *ids[1]]
        assert answer["attention_mask"] == [*[1] * len(ids[0]), *[0] * (longest - len(ids[0])), *[1] * longest]
        assert not app.engine.requests
        many = tensor("TEXT", "BYTES", *["a"] * 2049)
        assert "1 to 2048 texts" in await refused(app, "ensemble_tokenizer", many)
        assert "'TEXT' is not UTF-8" in await refused(
            app, "ensemble_tokenizer", {"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [255, 254]}
        )


async def test_padding_does_not_multiply_without_bound() -> None:
    async with serve(max_total_tokens=4096) as app:
        texts = tensor("TEXT", "BYTES", "a" * 3000, *["a"] * 600)
        assert "at most 1048576 ids" in await refused(app, "ensemble_tokenizer", texts)


async def test_logits_are_those_of_every_position_or_of_the_last() -> None:
    async with serve() as app:
        every = await infer(app, "ensemble_logits", IDS)
        last = await infer(app, "ensemble_logits", IDS, parameters={"positions": "last"})
        np.testing.assert_array_equal(every["logits"], logits_of([5, 6, 7]).ravel())
        np.testing.assert_array_equal(last["logits"], logits_of([7]).ravel())
        mask = {"name": "attention_mask", "shape": [1, 3], "datatype": "INT64", "data": [1, 1, 1]}
        assert await infer(app, "ensemble_logits", IDS, mask) == every
        assert "must be ones" in await refused(app, "ensemble_logits", IDS, {**mask, "data": [0, 1, 1]})
        two = {**IDS, "shape": [2, 3], "data": [1] * 6}
        assert "one prompt" in await refused(app, "ensemble_logits", two)
        assert "positions" in await refused(app, "ensemble_logits", IDS, parameters={"positions": "first"})
        assert "vocabulary" in await refused(app, "ensemble_logits", {**IDS, "data": [5, 6, VOCABULARY]})
        assert "vocabulary" in await refused(app, "ensemble_logits", {**IDS, "data": [5, 6, -1]})


async def test_classification_names_the_likeliest_next_tokens() -> None:
    async with serve() as app:
        wanted = [{"name": "logits", "parameters": {"classification": 3}}]
        response = await app.post(path("ensemble_logits"), {"inputs": [IDS], "outputs": wanted})
        [answer] = response.json()["outputs"]
        tokens = [byte_level().decode([id]) for id in (7, 6, 8)]
        values = ("8.500000:7", "8.250000:6", "8.250000:8")
        assert answer["data"] == [f"{value}:{token}" for value, token in zip(values, tokens, strict=True)]
        assert (answer["datatype"], answer["shape"]) == ("BYTES", [3])
        assert [each.logits for each in app.engine.requests] == ["last"]
        beyond = [{"name": "logits", "parameters": {"classification": 1001}}]
        assert "classification" in await refused(app, "ensemble_logits", IDS, outputs=beyond)
        texts = [{"name": "text_output", "parameters": {"classification": 1}}]
        assert "classification" in await refused(app, "ensemble", TEXT, outputs=texts)


async def test_too_many_logits_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routes.kserve.logits_model.MAX_LOGITS_BYTES", 3 * VOCABULARY * 4 - 1)
    async with serve() as app:
        assert "set the parameter positions to last" in await refused(app, "ensemble_logits", IDS)
        assert not app.engine.requests
        await infer(app, "ensemble_logits", IDS, parameters={"positions": "last"})


async def test_a_timeout_holds_while_other_logits_are_on_their_way() -> None:
    async with serve(request_timeout=60.0) as app:
        go = asyncio.Event()
        pace(app, lambda _: go.wait())
        first = asyncio.create_task(infer(app, "ensemble_logits", IDS))
        await until(app.gateway.one_with_logits.locked)
        message = await refused(app, "ensemble_logits", IDS, status=504, parameters={"timeout": 50_000})
        assert message == "the request was not finished within its timeout of 0.05 s"
        go.set()
        await first


async def test_logits_of_the_last_position_are_made_at_once() -> None:
    async with serve() as app:
        both = asyncio.Barrier(2)
        pace(app, lambda _: both.wait())  # neither goes on without the other
        asked = (infer(app, "ensemble_logits", IDS, parameters={"positions": "last"}) for _ in range(2))
        one, other = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
        assert one == other


async def test_a_model_without_logits_shows_no_such_model() -> None:
    async with serve(logits=False) as app:
        assert "does not exist" in await refused(app, "mock/model_logits", IDS, status=404)
        assert (await app.http.get("/v2/models")).json() == {"models": ["mock/model", "mock/model_tokenizer"]}
