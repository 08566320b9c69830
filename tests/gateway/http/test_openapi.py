"""The OpenAPI document describes every route, every body and every status that the routes answer."""

import json
import re
from typing import Any

import pytest

from gateway.http.openapi import AnswerModel
from gateway.routes.anthropic.errors import WORDING as ANTHROPIC
from gateway.routes.kobold.errors import WORDING as KOBOLD
from gateway.routes.kserve.errors import WORDING as KSERVE
from gateway.routes.openai.errors import WORDING as OPENAI
from gateway.routes.openai.responses import Cards, ChatCompletion, Completion, Embeddings
from gateway.routes.openai_responses.answers import InputTokens, ResponseObject
from gateway.routes.tgi.errors import WORDING as TGI
from gateway.routes.tgi.responses import Info
from tests.gateway.fixtures import serve
from tests.gateway.http.test_fuzz import ROUTES, SAME_BODY

# TGI's, OpenAI's, and those of vLLM that clients rely on.
PATHS = {
    "/": {"get", "post"}, "/generate": {"post"}, "/generate_stream": {"post"}, "/info": {"get"}, "/health": {"get"},
    "/ping": {"get", "post"}, "/tokenize": {"post"}, "/chat_tokenize": {"post"}, "/invocations": {"post"},
    "/vertex": {"post"}, "/v1/models": {"get"}, "/v1/models/{name}": {"get"}, "/v1/completions": {"post"},
    "/v1/chat/completions": {"post"}, "/v1/chat/completions/batch": {"post"}, "/v1/embeddings": {"post"},
    "/v1/messages": {"post"}, "/v1/messages/count_tokens": {"post"},
    "/v1/responses": {"post"}, "/v1/responses/input_tokens": {"post"}, "/v1/responses/{id}": {"get", "delete"},
    "/v1/responses/{id}/cancel": {"post"}, "/v1/responses/{id}/input_items": {"get"},
    "/detokenize": {"post"}, "/version": {"get"}, "/load": {"get"},
    "/tokenizer_info": {"get"},
    "/v2": {"get"}, "/v2/health/live": {"get"}, "/v2/health/ready": {"get"}, "/v2/models": {"get"},
    "/v2/models/stats": {"get"}, "/v2/logging": {"get", "post"}, "/v2/trace/setting": {"get", "post"},
    "/v2/repository/index": {"post"}, "/v2/repository/{repository}/index": {"post"},
    "/v2/repository/models/{model}/load": {"post"}, "/v2/repository/models/{model}/unload": {"post"},
    **{f"/v2/models/{{model}}{version}{path}": methods for version in ("", "/versions/{version}") for path, methods in {
        "": {"get"}, "/ready": {"get"}, "/config": {"get"}, "/stats": {"get"}, "/trace/setting": {"get", "post"},
        "/infer": {"post"}, "/generate": {"post"}, "/generate_stream": {"post"},
    }.items()},
    **{f"/v2/{kind}sharedmemory{region}/{work}": {"get" if work == "status" else "post"}
       for kind in ("system", "cuda") for region in ("", "/region/{name}")
       for work in ("status", "unregister", *(["register"] if region else []))},
    "/health/live": {"get"}, "/health/ready": {"get"},
    **{f"/api/{version}{path}": methods for version in ("v1", "latest") for path, methods in {
        "/generate": {"post"}, "/model": {"get"}, "/info/version": {"get"}, "/config/max_length": {"get"},
        "/config/max_context_length": {"get"}, "/config/soft_prompt": {"get", "put"},
        "/config/soft_prompts_list": {"get"},
    }.items()},
    "/api/extra/generate/stream": {"post"}, "/api/extra/generate/check": {"get", "post"},
    "/api/extra/abort": {"post"}, "/api/extra/tokencount": {"post"}, "/api/extra/tokenize": {"post"},
    "/api/extra/detokenize": {"post"}, "/api/extra/version": {"get"}, "/api/extra/perf": {"get"},
    "/api/extra/true_max_context_length": {"get"}, "/api/extra/preloadstory": {"get"},
}  # fmt: skip


async def document(path: str = "/api-doc/openapi.json") -> dict[str, Any]:
    async with serve() as app:
        answer = await app.http.get(path)
        assert answer.headers["content-type"] == "application/json"
        found: dict[str, Any] = answer.json()
        return found


async def test_every_route_is_described_and_no_other() -> None:
    paths = (await document())["paths"]
    assert {path: set(methods) for path, methods in paths.items()} == PATHS


async def test_both_addresses_answer_the_same_document() -> None:
    assert await document("/openapi.json") == await document()


@pytest.mark.parametrize("path", [*ROUTES, *SAME_BODY, "/invocations", "/vertex", "/chat_tokenize", "/detokenize"])
async def test_every_status_of_a_route_is_documented_and_its_body_described(path: str) -> None:
    described = re.sub("ensemble[a-z_]*", "{model}", path)
    operation = (await document())["paths"][described]["post"]
    prefixes = {"/v1/messages": ANTHROPIC, "/v1": OPENAI, "/detokenize": OPENAI, "/v2": KSERVE, "/api/": KOBOLD}
    wording = next((words for prefix, words in prefixes.items() if path.startswith(prefix)), TGI)
    rows: list[tuple[Any, ...]] = [*wording.values()]
    statuses = {str(row[0]) for row in rows} | {"200", "408", "413"}
    assert statuses <= operation["responses"].keys()
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert "properties" in schema or "anyOf" in schema
    assert "#/$defs" not in json.dumps(schema)


async def test_every_route_says_what_it_does() -> None:
    for path, methods in (await document())["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or operation.get("summary"), f"{method} {path}"


async def test_info_has_the_fields_that_are_documented() -> None:
    async with serve() as app:
        Info.model_validate((await app.http.get("/info")).json(), strict=True)


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}
ASKED: dict[str, Any] = {"prompt_logprobs": 1, "return_token_ids": True}
V1: dict[str, tuple[type[AnswerModel], str, dict[str, Any] | None]] = {
    "chat": (ChatCompletion, "/v1/chat/completions", CHAT),
    "chat with all": (ChatCompletion, "/v1/chat/completions", {**CHAT, **ASKED, "logprobs": True, "top_logprobs": 2}),
    "chats": (ChatCompletion, "/v1/chat/completions/batch", {"messages": [CHAT["messages"]] * 2}),
    "completion": (Completion, "/v1/completions", {"prompt": "lo"}),
    "completion with all": (Completion, "/v1/completions", {"prompt": "lo", **ASKED, "logprobs": 2, "echo": True}),
    "embeddings": (Embeddings, "/v1/embeddings", {"input": ["lo", "he"]}),
    "embeddings as texts": (Embeddings, "/v1/embeddings", {"input": "lo", "encoding_format": "base64"}),
    "response": (ResponseObject, "/v1/responses", {"input": "lo"}),
    "count of tokens": (InputTokens, "/v1/responses/input_tokens", {"input": "lo"}),
    "models": (Cards, "/v1/models", None),
}


@pytest.mark.parametrize("name", V1)
async def test_an_answer_of_v1_has_the_fields_that_are_documented_and_no_other(name: str) -> None:
    model, path, body = V1[name]
    async with serve(served_model_name=("mine", "other")) as app:
        response = await (app.http.get(path) if body is None else app.post(path, body))
        model.model_validate(response.json(), strict=True)


async def test_tgis_ranges_are_told_as_far_as_they_are_the_same_on_every_server() -> None:
    body = (await document())["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    parameters = next(each for each in body["properties"]["parameters"]["anyOf"] if "properties" in each)["properties"]
    told = {name: next(iter(schema.get("anyOf", [schema.get("items", {})]))) for name, schema in parameters.items()}
    assert {name: {key: value for key, value in told[name].items() if key != "type"} for name in RANGES} == RANGES


RANGES = {
    "temperature": {"exclusiveMinimum": 0, "maximum": 100},
    "repetition_penalty": {"minimum": 0.001, "maximum": 100},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "typical_p": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "top_k": {"minimum": 1, "maximum": 2**31 - 1},
    "max_new_tokens": {"minimum": 1, "maximum": 2**32 - 1},
    "truncate": {"minimum": 1},
    "stop": {"minLength": 1, "maxLength": 256},
}
