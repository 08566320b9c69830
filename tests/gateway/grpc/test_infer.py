"""`ModelInfer` over a known engine: tensors raw and in lists, parameters of every kind, and what is refused."""

import asyncio
import time
from typing import Any

import grpc
import numpy as np
import pytest

from gateway.grpc import open_inference_pb2 as pb
from gateway.routes.kserve.tensor import Tensor
from tests.engine_mock import VOCABULARY, logits_of
from tests.gateway.asgi_client import pace
from tests.gateway.grpc.serving import MODEL, ids, request, serving, text
from tests.gateway.toys import byte_level
from tests.processes import PATIENCE

Code = grpc.StatusCode


@pytest.mark.parametrize("typed", [False, True])
async def test_a_text_is_answered_whichever_way_tensors_come(typed: bool) -> None:
    async with serving() as served:
        tensors = text("lo", max_tokens=3, exclude_input_in_output=True, top_p=0.5, return_num_output_tokens=True)
        answer = await served.client.call("ModelInfer", request(*tensors, typed=typed, id="7"))
        assert (answer.model_name, answer.model_version, answer.id) == (MODEL, "1", "7")
        assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
            ("text_output", "BYTES", [1]),
            ("num_output_tokens", "INT32", [1]),
        ]
        assert list(answer.raw_output_contents) == [b"\7\0\0\0hello w", b"\3\0\0\0"]
        assert not any(each.HasField("contents") for each in answer.outputs) and not answer.parameters
        [asked] = served.app.engine.requests
        assert asked.max_new_tokens == 3 and asked.sampling.top_p == 0.5


async def test_a_text_becomes_ids_and_ids_logits_as_in_the_post_on_bloom() -> None:
    """By the text model's own name: its server has a bare network under it."""
    async with serving(served_model_name=("bloom_3b",)) as served:
        infer, given = served.client.infer, byte_level().encode("hello world").ids
        outputs = [pb.ModelInferRequest.RequestedOutput(name=name) for name in ("input_ids", "attention_mask")]
        texts = request(Tensor.of("TEXT", "BYTES", ["hello world"]), model="bloom_3b_tokenizer", outputs=outputs)
        tokens = await infer(texts)
        assert tokens == {"input_ids": given, "attention_mask": [1] * len(given)}
        mask = Tensor.of("attention_mask", "INT64", [[1] * len(given)], (1, len(given)))
        for model in ("bloom_3b", "bloom_3b_logits", "ensemble"):
            answer = await served.client.call("ModelInfer", request(ids(given), mask, model=model))
            assert list(answer.outputs[0].shape) == [1, len(given), VOCABULARY] and answer.model_name == model
            np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], "<f4"), logits_of(given).ravel())


async def test_ids_beside_a_text_and_ids_for_an_adapter_are_no_way_to_ask_for_logits() -> None:
    async with serving(adapters=("mine=org/a",)) as served:
        for asked in (request(*text("lo"), ids([5])), request(ids([5]), model="mine")):
            error = await served.client.refusal("ModelInfer", asked)
            assert error.code() == Code.INVALID_ARGUMENT and "unexpected inference input 'input_ids'" in error.details()


async def test_the_highest_logits_can_be_asked_for_alone() -> None:
    async with serving() as served:
        asked = request(ids([5, 6]), model=f"{MODEL}_logits")
        asked.outputs.add(name="logits").parameters["classification"].int64_param = 2
        values = (await served.client.infer(asked))["logits"]
        assert len(values) == 2 and values[0].split(":")[1] == "6"


async def test_parameters_of_every_kind_reach_the_engine() -> None:
    async with serving() as served:
        asked = request(*text("lo"))
        asked.parameters["temperature"].double_param = 0.5
        asked.parameters["max_tokens"].int64_param = 3
        asked.parameters["top_k"].string_param = "4"
        asked.parameters["priority"].uint64_param = 1
        asked.parameters["ignore_eos"].bool_param = True
        await served.client.infer(asked)
        [seen] = served.app.engine.requests
        assert (seen.max_new_tokens, seen.sampling.temperature, seen.sampling.top_k) == (3, 0.5, 4)
        assert seen.priority < 0


async def test_the_timeout_of_a_request_is_its_deadline() -> None:
    async with serving() as served:
        asked = request(*text("lo"))
        asked.parameters["timeout"].int64_param = 2_000_000
        await served.client.infer(asked)
        assert 0 < served.app.engine.requests[0].timeout_seconds <= 2


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"])
async def test_whole_numbers_of_any_width_come_in_the_list_of_theirs(datatype: str) -> None:
    field = {"INT64": "int64_contents", "UINT64": "uint64_contents"}.get(
        datatype, "uint_contents" if datatype[0] == "U" else "int_contents"
    )
    async with serving() as served:
        asked = request(*text("lo"), typed=True)
        tensor = asked.inputs.add(name="max_tokens", datatype=datatype, shape=[1])
        getattr(tensor.contents, field).append(2)
        await served.client.infer(asked)
        assert served.app.engine.requests[0].max_new_tokens == 2


def wrong(**fields: Any) -> pb.ModelInferRequest:
    """A right request but for `fields` of its only input, or its raw contents."""
    asked = pb.ModelInferRequest(model_name=MODEL, raw_input_contents=fields.pop("raws", [b"\2\0\0\0lo"]))
    asked.inputs.add(**{"name": "text_input", "datatype": "BYTES", "shape": [1], **fields})
    return asked


REFUSED = [
    (wrong(raws=[b"\2\0\0\0lo"] * 2), "there are 2 raw_input_contents for 1 inputs"),
    (wrong(raws=[b"\3\0\0\0lo"]), "is cut"),
    (wrong(raws=[b"\1\0\0\0lo"]), "more than 1 elements"),
    (wrong(raws=[b""]), "has 0 elements, expected 1"),
    (wrong(raws=[]), "has 0 values, expected 1"),
    (wrong(shape=[2]), "has 1 elements, expected 2"),
    (wrong(shape=[-1]), "at most 8 sizes of at least 0"),
    (wrong(shape=[1 << 40, 1 << 40]), "more than 65536 elements"),
    (wrong(shape=[1] * 9), "at most 8 sizes"),
    (wrong(datatype="TEXT"), "the datatype must be one of"),
    (wrong(datatype="FP32"), "has 6 bytes, expected 4 bytes"),
    (wrong(raws=[], datatype="FP16"), "which only raw_input_contents can hold"),
    (wrong(raws=[], contents=pb.InferTensorContents(int_contents=[1])), "has 0 values, expected 1"),
    (wrong(contents=pb.InferTensorContents(bytes_contents=[b"a"])), "has both contents and raw_input_contents"),
    (wrong(raws=[], datatype="INT8", contents=pb.InferTensorContents(int_contents=[300])), "too large for INT8"),
    (wrong(raws=[b"\1\0\0\0\xff"]), "is not UTF-8"),
    (wrong(name="a" * 200), "at most 128 characters"),
    (wrong(name="prompt"), "unexpected inference input 'prompt'"),
    (request(*text("lo"), *text("lo")), "input 'text_input' is given twice"),
    (request(*text("lo", stream=True)), "stream asks for several responses"),
    (request(), "input 'text_input' is missing"),
    (request(*text("lo"), *(Tensor.of(f"a{n}", "INT32", [1]) for n in range(64))), "at most 64 inputs"),
    (request(*text("lo"), outputs=[pb.ModelInferRequest.RequestedOutput(name="logits")]), "inference output 'logits'"),
    (request(*text("lo"), parameters={"a": pb.InferParameter()}), "parameter 'a' has no value"),
    (request(*text("lo"), parameters={"sequence_id": pb.InferParameter(int64_param=1)}), "no model here has a state"),
    (request(*text("lo"), parameters={f"a{n}": pb.InferParameter(int64_param=1) for n in range(129)}), "at most 128"),
    (
        wrong(parameters={"shared_memory_region": pb.InferParameter(string_param="a")}, raws=[]),
        "shared memory is not supported",
    ),
]


async def test_what_is_wrong_with_a_request_is_said() -> None:
    async with serving() as served:
        for asked, said in REFUSED:
            error = await served.client.refusal("ModelInfer", asked)
            assert error.code() == Code.INVALID_ARGUMENT and said in error.details(), (said, error.details())
        assert not served.app.engine.requests


@pytest.mark.parametrize(("model", "version"), [("none", ""), (MODEL, "2"), (f"{MODEL}_none", "1")])
async def test_an_unknown_model_or_version_is_not_found(model: str, version: str) -> None:
    async with serving() as served:
        error = await served.client.refusal("ModelInfer", request(*text("lo"), model=model, model_version=version))
        assert error.code() == Code.NOT_FOUND
        for name in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
            asked = pb.ModelRequest(name=model, version=version)
            assert (await served.client.refusal(name, asked)).code() == Code.NOT_FOUND


async def test_calls_run_at_once() -> None:
    async with serving() as served:
        both = asyncio.Barrier(2)
        pace(served.app, lambda _: both.wait())
        await asyncio.wait_for(asyncio.gather(*(served.client.infer(request(*text("lo"))) for _ in "ab")), PATIENCE)


async def test_inferences_are_counted() -> None:
    async with serving(served_model_name=("a",)) as served:
        assert served.app.engine.description is not None
        served.app.gateway.metrics.engine_ready(0, served.app.engine.description, 63)
        await served.client.infer(request(*text("lo"), model="a"))
        await served.client.refusal("ModelInfer", request(model="a"))
        answer = await served.client.call("ModelStatistics", pb.ModelRequest(name="a"))
        [stats] = answer.model_stats
        counts = (
            stats.name,
            stats.inference_count,
            stats.inference_stats.success.count,
            stats.inference_stats.fail.count,
        )
        assert counts == ("a", 1, 1, 1) and stats.inference_stats.success.ns > 0
        assert len((await served.client.call("ModelStatistics")).model_stats) == 3


async def test_an_answer_may_be_larger_than_the_4_MB_that_grpc_sends_unless_told() -> None:
    async with serving(max_total_tokens=4096) as served:
        texts = ["a"] * 1000 + ["x" * 600]
        values = await served.client.infer(request(Tensor.of("TEXT", "BYTES", texts), model=f"{MODEL}_tokenizer"))
        assert len(values["input_ids"]) == 1001 * 601 and sum(values["attention_mask"]) == 1000 * 2 + 601


async def test_a_message_of_a_million_parts_is_refused_within_moments() -> None:
    """2 MB of inputs that are empty, each two bytes long."""
    async with serving() as served:
        began = time.perf_counter()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.client.unary("ModelInfer")(request().SerializeToString() + b"\x2a\x00" * 990_000)
        assert error.value.code() == Code.INVALID_ARGUMENT and "at most 64 inputs" in str(error.value.details())
        assert time.perf_counter() - began < 10
