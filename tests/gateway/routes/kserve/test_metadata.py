"""What the server tells of itself and its models, and what it counts."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.routes.kserve import responses
from gateway.routes.kserve.tensor import DATATYPES
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.toys import FAIL_TEXT

DOCUMENTED: dict[str, Any] = {
    "/v2": responses.ServerMetadata,
    "/v2/health/live": responses.Live,
    "/v2/health/ready": responses.Ready,
    "/v2/models": responses.ModelList,
    "/v2/models/stats": responses.Statistics,
    "/v2/models/a/b": responses.ModelMetadata,
    "/v2/models/a/b/versions/1": responses.ModelMetadata,
    "/v2/models/a/b_logits": responses.ModelMetadata,
    "/v2/models/a/b/config": responses.ModelConfig,
    "/v2/models/a/b_tokenizer/versions/1/config": responses.ModelConfig,
    "/v2/models/a/b/stats": responses.Statistics,
    "/v2/models/a/b/versions/1/stats": responses.Statistics,
    "/v2/models/a/b/ready": responses.ModelReady,
    "/v2/models/a/b/versions/1/ready": responses.ModelReady,
    "/v2/models/a/b/trace/setting": responses.TraceSettings,
    "/v2/trace/setting": responses.TraceSettings,
    "/v2/logging": responses.LogSettings,
    "/v2/systemsharedmemory/status": list[responses.Empty],
    "/v2/cudasharedmemory/region/a/status": list[responses.Empty],
}


@pytest.mark.parametrize("path", DOCUMENTED)
async def test_an_answer_has_the_fields_that_are_documented_and_no_other(path: str) -> None:
    async with serve(served_model_name=("a/b",)) as app:
        response = await app.http.get(path)
        assert response.status_code == 200, response.text
        TypeAdapter(DOCUMENTED[path]).validate_python(response.json(), strict=True)


async def test_the_index_lists_every_model_with_and_without_a_body() -> None:
    async with serve(served_model_name=("a",)) as app:
        for content in (b"", b"{}", b'{"ready": true}'):
            for path in ("/v2/repository/index", "/v2/repository/models/index"):
                response = await app.http.post(path, content=content)
                TypeAdapter(list[responses.IndexEntry]).validate_python(response.json(), strict=True)
                assert [each["name"] for each in response.json()] == ["a", "a_tokenizer", "a_logits"]
        assert (await app.http.post("/v2/repository/index", content=b"[")).status_code == 400


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v2/repository/models/a/load", "fixed"),
        ("/v2/repository/models/a/unload", "fixed"),
        ("/v2/logging", "fixed"),
        ("/v2/trace/setting", "fixed"),
        ("/v2/models/a/trace/setting", "fixed"),
        ("/v2/systemsharedmemory/region/a/register", "not supported"),
        ("/v2/cudasharedmemory/region/a/unregister", "not supported"),
        ("/v2/systemsharedmemory/unregister", "not supported"),
    ],
)
async def test_what_makes_no_sense_here_is_refused(path: str, said: str) -> None:
    async with serve(served_model_name=("a",)) as app:
        response = await app.http.post(path, content=b"")
        assert response.status_code == 400 and said in response.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v2/models/a/infer", 405, "POST"),
        ("GET", "/v2/models/a/versions/1/generate", 405, "POST"),
        ("POST", "/v2/models/a", 405, "GET, HEAD"),
        ("POST", "/v2/models/stats", 405, "GET, HEAD"),
        ("DELETE", "/v2/models/a/trace/setting", 405, "GET, HEAD, POST"),
        ("GET", "/v2/models/b", 404, None),
        ("GET", "/v2/models/a/versions/9", 404, None),
        ("GET", "/v2/nowhere", 404, None),
        ("POST", "/v2/models/b/infer", 404, None),
    ],
)
async def test_unknown_names_and_methods(method: str, path: str, status: int, allowed: str | None) -> None:
    async with serve(served_model_name=("a",)) as app:
        response = await app.http.request(method, path)
        assert (response.status_code, response.headers.get("allow")) == (status, allowed)
        assert response.json().keys() == {"error"}


async def test_only_the_required_inputs_are_not_optional() -> None:
    async with serve(served_model_name=("a",)) as app:
        needed = {}
        for name in ("a", "a_tokenizer", "a_logits"):
            config = (await app.http.get(f"/v2/models/{name}/config")).json()
            needed[name] = [each["name"] for each in config["input"] if not each["optional"]]
            metadata = (await app.http.get(f"/v2/models/{name}")).json()
            assert {each["datatype"] for each in (*metadata["inputs"], *metadata["outputs"])} <= {*DATATYPES}
        assert needed == {"a": ["text_input"], "a_tokenizer": ["TEXT"], "a_logits": ["input_ids"]}


async def test_an_engine_that_is_gone_is_a_503() -> None:
    async with serve() as app:
        app.gateway.draining = True
        for path in ("/v2/health/ready", "/v2/models", "/v2/models/mock/model/ready", "/v2/models/stats"):
            assert (await app.http.get(path)).status_code == 503, path
        response = await app.post("/v2/models/ensemble/generate", text_input="lo")
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert (await app.http.get("/v2/health/live")).status_code == 200


def series(app: ServedApp, *, named: bool = True) -> dict[str, float]:
    lines = app.gateway.metrics.render(named=named).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("nv_"))
    return {name: float(value) for name, _, value in pairs}


async def test_inferences_are_counted_by_model_and_statistics_are_the_same_counts() -> None:
    async with serve(served_model_name=("a",)) as app:
        assert app.engine.description is not None
        app.gateway.metrics.engine_ready(0, app.engine.description, 63)
        await app.post("/v2/models/a/generate", text_input="lo")
        await app.post("/v2/models/ensemble/generate_stream", text_input="lo", stream=True)
        await app.post("/v2/models/a/generate", text_input="lo", temperature=-1)
        await app.post("/v2/models/a/generate", text_input=FAIL_TEXT, add_special_tokens=False)
        await app.post("/v2/models/a_tokenizer/generate", TEXT="lo")
        await app.post("/v2/models/a_logits/generate", input_ids=[5])
        await app.post("/v1/completions", prompt="lo")  # none of this protocol's
        found = series(app)
        model = {name: f'model="{name}",version="1"' for name in ("a", "a_tokenizer", "a_logits")}
        counts = {name: found[f"nv_inference_request_success{{{labels}}}"] for name, labels in model.items()}
        assert counts == {"a": 2, "a_tokenizer": 1, "a_logits": 1}
        for reason in ("OTHER", "BACKEND"):
            assert found[f'nv_inference_request_failure{{model="a",reason="{reason}",version="1"}}'] == 1
        assert found[f"nv_inference_first_response_histogram_ms_count{{{model['a']}}}"] == 2
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        spent = {part: found[f"nv_inference_{part}_duration_us{{{model['a']}}}"] for part in parts}
        total = found[f"nv_inference_request_duration_us{{{model['a']}}}"]
        assert all(each >= 0 for each in spent.values()) and sum(spent.values()) == pytest.approx(total, rel=0.2)
        first, *_ = (await app.http.get("/v2/models/stats")).json()["model_stats"]
        stats = first["inference_stats"]
        assert (first["name"], first["inference_count"], stats["fail"]["count"]) == ("a", 2, 2)
        assert stats["success"] == {"count": 2, "ns": pytest.approx(1000 * total, abs=1000)}
        assert first["last_inference"] > 1.7e12


async def test_series_without_the_key_do_not_name_the_model() -> None:
    async with serve(served_model_name=("secret",)) as app:
        assert app.engine.description is not None
        app.gateway.metrics.engine_ready(0, app.engine.description, 63)
        for name in ("", "_tokenizer"):
            await app.post(f"/v2/models/secret{name}/generate", {"text_input" if not name else "TEXT": "lo"})
        text = json.dumps(series(app, named=False))
        assert "secret" not in text
        assert 'model=\\"model_tokenizer\\"' in text and 'model=\\"model\\"' in text
