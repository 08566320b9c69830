"""What clients ask about the server, and counts of tokens."""

from typing import Any

import pytest

from gateway.routes.kobold.responses import Performance, Version
from tests.gateway.fixtures import serve
from tests.gateway.routes.kobold.asking import GENERATE
from tests.gateway.toys import BOS

LITERAL: dict[str, Any] = {
    "/api/v1/info/version": {"result": "1.2.5"},
    "/api/v1/model": {"result": "koboldcpp/mock/model"},
    "/api/v1/config/max_context_length": {"value": 64},
    "/api/v1/config/max_length": {"value": 48},
    "/api/v1/config/soft_prompt": {"value": ""},
    "/api/v1/config/soft_prompts_list": {"values": []},
    "/api/extra/true_max_context_length": {"value": 64},
    "/api/extra/preloadstory": {},
    "/api/extra/generate/check": {"results": [{"text": ""}]},
}


@pytest.mark.parametrize("path", LITERAL)
async def test_what_is_told(path: str) -> None:
    async with serve() as app:
        for alias in {path, path.replace("/v1/", "/latest/")}:
            response = await app.http.get(alias)
            assert (response.status_code, response.json()) == (200, LITERAL[path])


async def test_the_version_says_what_is_served() -> None:
    async with serve(served_model_name=("mine",)) as app:
        told = (await app.http.get("/api/extra/version")).json()
        Version.model_validate(told, strict=True)
        assert (told["result"], told["version"], told["protected"], told["vision"]) == (
            "KoboldCpp", "1.102", False, False,
        )  # fmt: skip
        assert (await app.http.get("/api/v1/model")).json() == {"result": "koboldcpp/mine"}
    async with serve(api_key="hush") as app:
        key = {"authorization": "Bearer hush"}
        assert (await app.http.get("/api/extra/version", headers=key)).json()["protected"] is True


async def test_performance_is_that_of_the_last_answer() -> None:
    async with serve() as app:
        before = (await app.http.get("/api/extra/perf")).json()
        Performance.model_validate(before, strict=True)
        assert (before["last_token_count"], before["stop_reason"], before["idle"]) == (0, -1, 1)
        await app.post(GENERATE, prompt="lo", max_length=3)
        after = (await app.http.get("/api/extra/perf")).json()
        Performance.model_validate(after, strict=True)
        assert (after["last_token_count"], after["last_input_count"], after["stop_reason"]) == (3, 2, 0)
        assert after["last_eval"] > 0 and after["uptime"] >= before["uptime"]


@pytest.mark.parametrize("path", ["/api/extra/tokencount", "/api/extra/tokenize"])
async def test_tokens_are_counted_and_listed(path: str) -> None:
    async with serve() as app:
        assert (await app.post(path, prompt="lo")).json() == {"value": 2, "ids": [BOS, 260]}
        assert (await app.post(path, prompt="lo", special=False)).json() == {"value": 1, "ids": [260]}
        for content in (b"", b"no json", b"{}", b'{"prompt": 5}'):
            wrong = await app.raw(path, content)
            assert (wrong.status_code, wrong.json()["value"]) == (400, -1)
            assert wrong.json()["detail"]["type"] == "bad_input"


async def test_ids_become_a_text_again() -> None:
    async with serve() as app:
        path = "/api/extra/detokenize"
        assert (await app.post(path, ids=[BOS, 260])).json() == {"result": "lo", "success": True}
        assert (await app.post(path, ids=[BOS, 260], special=True)).json()["result"] == "<s>lo"
        assert (await app.post(path, ids=[])).json() == {"result": "", "success": True}
        for ids in ([320], [-1], ["a"], None):
            wrong = await app.post(path, {"ids": ids})
            assert (wrong.status_code, wrong.json()["result"], wrong.json()["success"]) == (400, "", False)


async def test_only_the_soft_prompt_that_is_none_can_be_loaded() -> None:
    async with serve() as app:
        path = "/api/latest/config/soft_prompt"
        assert (await app.http.put(path, json={"value": ""})).json() == {}
        wrong = await app.http.put(path, json={"value": "a.zip"})
        assert (wrong.status_code, wrong.json()["detail"]["type"]) == (400, "bad_input")


@pytest.mark.parametrize(
    "path", ["/api/extra/last_logprobs", "/api/extra/json_to_grammar", "/api/extra/tts", "/api/admin"]
)
async def test_what_is_not_served_is_not_found(path: str) -> None:
    async with serve() as app:
        response = await app.post(path)
        message = "Not Found: /docs lists every route"
        assert (response.status_code, response.json()) == (404, {"detail": {"msg": message, "type": "bad_input"}})


async def test_without_a_key_nothing_is_told() -> None:
    async with serve(api_key="hush") as app:
        for path in LITERAL:
            response = await app.http.get(path)
            assert (response.status_code, response.json()["detail"]["type"]) == (401, "unauthorized")
