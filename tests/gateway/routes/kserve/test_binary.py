"""Tensors behind the JSON of a body and of an answer, and how long bodies and answers may be."""

import gzip
import json
import zlib
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.http.piecewise import PIECE
from gateway.routes.kserve import binary as kserve_binary
from gateway.routes.kserve.tensor import BYTES, Tensor
from tests.engine_mock import VOCABULARY, logits_of
from tests.gateway.asgi_client import Connection
from tests.gateway.fixtures import Callers, ServedApp, serve
from tests.gateway.routes.kserve.asking import IDS, TEXT, path, refused, tensor
from tests.gateway.toys import byte_level

LENGTH = "inference-header-content-length"


async def binary(
    app: ServedApp, model: str, inputs: dict[str, bytes], header: dict[str, Any], **headers: str
) -> httpx.Response:
    """Send `header` and behind it the raw `inputs`; each is told by its `binary_data_size`."""
    for each in header["inputs"]:
        if each["name"] in inputs:
            each.setdefault("parameters", {"binary_data_size": len(inputs[each["name"]])})
    written = json.dumps(header).encode()
    content = b"".join((written, *inputs.values()))
    return await app.http.post(path(model), content=content, headers={LENGTH: str(len(written)), **headers})


def decoded(response: httpx.Response) -> dict[str, Tensor]:
    """The outputs of an answer in binary."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[LENGTH])
    header, at, found = json.loads(response.content[:length]), length, {}
    for each in header["outputs"]:
        size = each["parameters"]["binary_data_size"]
        raw = response.content[at : at + size]
        found[each["name"]] = Tensor.from_raw(each["name"], each["datatype"], tuple(each["shape"]), raw)
        at += size
    assert at == len(response.content)
    return found


async def test_tensors_may_follow_the_json_in_both_directions() -> None:
    raws = {"text_input": Tensor.of("", BYTES, ["lo"]).raw(), "max_tokens": np.array([3], "<i4").tobytes()}
    header = {
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES"},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32"},
        ],
        "parameters": {"binary_data_output": True},
    }
    async with serve() as app:
        answer = decoded(await binary(app, "ensemble", raws, header))
        assert answer["text_output"].values.tolist() == [b"lohello w"]


async def test_each_output_may_say_whether_it_is_binary() -> None:
    async with serve() as app:
        outputs = [{"name": "input_ids", "parameters": {"binary_data": True}}, {"name": "attention_mask"}]
        body = {"inputs": [tensor("TEXT", "BYTES", "lo")], "outputs": outputs}
        response = await app.post(path("ensemble_tokenizer"), body)
        length = int(response.headers[LENGTH])
        first, second = json.loads(response.content[:length])["outputs"]
        assert first["parameters"] == {"binary_data_size": 16} and second["data"] == [1, 1]
        assert np.frombuffer(response.content[length:], "<i8").tolist() == byte_level().encode("lo").ids


async def test_a_body_may_be_one_raw_tensor() -> None:
    async with serve() as app:
        for content in (b"lo", b"hello world"):
            response = await app.http.post(path("ensemble"), content=content, headers={LENGTH: "0"})
            assert decoded(response)["text_output"].values.tolist() == [content + b"hello world"]
        ids = np.array([5, 6, 7], "<i8").tobytes()
        response = await app.http.post(path("ensemble_logits"), content=ids, headers={LENGTH: "0"})
        np.testing.assert_array_equal(decoded(response)["logits"].values, logits_of([5, 6, 7]).ravel())


@pytest.mark.parametrize("length", ["-1", "x", "1e2", "999999", "99999999999999999999", " 3", "+3", "0x1"])
async def test_the_length_of_the_json_must_be_one(length: str) -> None:
    async with serve() as app:
        response = await app.http.post(path("ensemble"), json={"inputs": [TEXT]}, headers={LENGTH: length})
        assert response.status_code == 400 and "error" in response.json()


async def test_of_two_lengths_none_is_the_length() -> None:
    async with serve() as app:
        body = json.dumps({"inputs": [TEXT]}).encode()
        headers = [(LENGTH, str(len(body))), (LENGTH, "0")]
        assert (await app.http.post(path("ensemble"), content=body, headers=headers)).status_code == 400


@pytest.mark.parametrize("name", ["binary_data", "binary_data_output"])
async def test_whether_an_output_is_binary_is_true_or_false(name: str) -> None:
    async with serve() as app:
        given = {name: "false"}
        outputs = [{"name": "text_output", "parameters": given if name == "binary_data" else {}}]
        parameters = given if name == "binary_data_output" else {}
        message = await refused(app, "ensemble", TEXT, outputs=outputs, parameters=parameters)
        assert f"'{name}' must be true or false" in message


async def test_a_long_answer_is_sent_in_pieces() -> None:
    async with serve(max_total_tokens=4096) as app:
        body = {"inputs": [{**IDS, "shape": [1, 2000], "data": [5] * 2000}], "parameters": {"binary_data_output": True}}
        client = Connection(app, path("ensemble_logits"), body)
        await client.run()
        _, *pieces = client.messages
        assert [len(each["body"]) for each in pieces][:2] == [PIECE, PIECE]
        assert sum(len(each["body"]) for each in pieces) > 4 * 2000 * VOCABULARY
        assert [each["more_body"] for each in pieces] == [True] * (len(pieces) - 1) + [False]


@pytest.mark.parametrize("change", [-1, 1])
async def test_sizes_must_sum_to_what_follows_the_json(change: int) -> None:
    raw = Tensor.of("", BYTES, ["lo"]).raw()
    header = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES"}]}
    async with serve() as app:
        header["inputs"][0]["parameters"] = {"binary_data_size": len(raw) + change}  # type: ignore[assignment]
        response = await binary(app, "ensemble", {"text_input": raw}, header)
        assert (response.status_code == 400 and "text_input" in response.json()["error"]) or change < 0
        assert response.status_code == 400
        assert not app.engine.requests


@pytest.mark.parametrize(("encoding", "deflated"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_body_may_be_compressed_but_not_beyond_the_payload_limit(encoding: str, deflated: Any) -> None:
    body = json.dumps({"inputs": [TEXT]}).encode()
    async with serve(payload_limit=4096) as app:
        headers = {"content-encoding": encoding}
        good = await app.http.post(path("ensemble"), content=deflated(body), headers=headers)
        assert good.json()["outputs"][0]["data"] == ["lohello world"]
        bomb = await app.http.post(path("ensemble"), content=deflated(body + b" " * 1_000_000), headers=headers)
        assert (bomb.status_code, bomb.json()) == (413, {"error": "The request body is longer than 4096 bytes"})
        for broken in (deflated(body)[:-6], b"no", deflated(body) + b"more"):
            response = await app.http.post(path("ensemble"), content=broken, headers=headers)
            assert response.status_code == 400, response.text
        other = await app.http.post(path("ensemble"), content=body, headers={"content-encoding": "br"})
        assert other.status_code == 415


async def test_a_body_is_inflated_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(monkeypatch, kserve_binary.inflated, kserve_binary)
    async with serve() as app:
        content = gzip.compress(json.dumps({"inputs": [TEXT]}).encode())
        response = await app.http.post(path("ensemble"), content=content, headers={"content-encoding": "gzip"})
    assert response.status_code == 200
    assert callers.beside_the_event_loop


async def test_a_body_needs_no_content_type() -> None:
    async with serve() as app:
        response = await app.http.post(path("ensemble"), content=json.dumps({"inputs": [TEXT]}))
        assert "content-type" not in response.request.headers
        assert response.status_code == 200


async def test_an_answer_too_long_for_json_is_to_be_asked_for_in_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routes.kserve.infer.MAX_JSON_VALUES", 2 * VOCABULARY)
    async with serve() as app:
        assert "ask for binary_data" in await refused(app, "ensemble_logits", IDS)
        header = {"inputs": [IDS], "parameters": {"binary_data_output": True}}
        answer = decoded(await binary(app, "ensemble_logits", {}, header))
        np.testing.assert_array_equal(answer["logits"].values, logits_of([5, 6, 7]).ravel())
