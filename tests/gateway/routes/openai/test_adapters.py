"""vLLM's routes by which clients load and unload adapters."""

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Kind, RequestError
from gateway.routes.openai.adapters import without_directories
from tests.gateway.fixtures import ServedApp, serve

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
RUNTIME: dict[str, Any] = {"allow_runtime_lora_updating": True, "adapters": ("first=org/first",)}
NEW = {"lora_name": "new", "lora_path": "org/new@v1"}


async def served(app: ServedApp) -> list[str]:
    return [card["id"] for card in (await app.http.get("/v1/models")).json()["data"]]


async def test_an_adapter_is_loaded_asked_replaced_and_unloaded() -> None:
    async with serve([], **RUNTIME) as app:
        loaded = await app.post(LOAD, NEW)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'new' added successfully.")
        assert loaded.headers["content-type"].startswith("text/plain")
        assert await served(app) == ["mock/model", "first", "new"]
        answer = (await app.post("/v1/completions", prompt="lo", model="new", max_tokens=5)).json()
        assert answer["model"] == "new"
        again = await app.post(LOAD, {**NEW, "lora_path": "org/better", "load_inplace": True})
        assert again.status_code == 200
        better = (await app.post("/v1/completions", prompt="lo", model="new", max_tokens=5)).json()
        assert better["choices"][0]["text"] != answer["choices"][0]["text"]
        assert better["system_fingerprint"] != answer["system_fingerprint"]
        unloaded = await app.post(UNLOAD, lora_name="new")
        assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'new' removed successfully.")
        assert await served(app) == ["mock/model", "first"]
        assert (await app.post("/v1/completions", prompt="lo", model="new")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"lora_path": "org/new"}, 400, "lora_name", "lora_name"),
        ({"lora_name": "new"}, 400, "lora_path", "lora_path"),
        ({**NEW, "lora_name": 5}, 400, "lora_name", "lora_name"),
        ({**NEW, "lora_name": ""}, 400, "lora_name", "''"),
        ({**NEW, "lora_path": ""}, 400, "lora_path", "''"),
        ({**NEW, "lora_name": "a,b"}, 400, "lora_name", "'a,b'"),
        ({**NEW, "lora_name": "x" * 300}, 400, "lora_name", "at most 256 characters, has 300"),
        ({**NEW, "lora_path": "x" * 9999}, 400, "lora_path", "at most 4096 characters, has 9999"),
        ({**NEW, "lora_name": "mock/model"}, 400, "lora_name", "'mock/model' is a name of the model itself"),
        ({**NEW, "lora_name": "tgi"}, 400, "lora_name", "'tgi' is a name of the model itself"),
        ({**NEW, "lora_name": "first"}, 400, "lora_name", "'first' has already been loaded: set load_inplace"),
        ({**NEW, "lora_path": "."}, 400, "lora_path", "must be an absolute path or an id on the hub"),
        ({**NEW, "lora_path": "../../etc"}, 400, "lora_path", "must be an absolute path or an id on the hub"),
        ({**NEW, "lora_path": "/nowhere"}, 404, "lora_path", "'/nowhere'"),
        ({**NEW, "lora_path": "/"}, 400, "lora_path", "no adapter_config.json"),
    ],
)
async def test_a_load_that_is_refused_says_why_and_changes_nothing(
    body: dict[str, Any], status: int, param: str, words: str
) -> None:
    async with serve(**RUNTIME) as app:
        refused = await app.post(LOAD, body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (status, param)
        assert words in error["message"] and len(error["message"]) < 300
        assert await served(app) == ["mock/model", "first"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [({}, 400, "lora_name"), ({"lora_name": ""}, 400, "''"), ({"lora_name": "other"}, 404, "'other' cannot be found")],
)
async def test_an_unload_that_is_refused_says_why(body: dict[str, Any], status: int, words: str) -> None:
    async with serve(**RUNTIME) as app:
        refused = await app.http.post(UNLOAD, json=body)
        assert refused.status_code == status
        assert words in refused.json()["error"]["message"]


async def test_an_engine_that_can_have_no_adapters_says_so() -> None:
    async with serve(allow_runtime_lora_updating=True) as app:
        refused = await app.post(LOAD, NEW)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "this engine serves no adapters"


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_without_the_option_there_are_no_such_routes(path: str) -> None:
    async with serve(adapters=("first=org/first",)) as app:
        assert (await app.post(path, NEW)).status_code == 404
        assert path not in (await app.http.get("/openapi.json")).json()["paths"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_the_routes_ask_for_the_key_and_are_described(path: str) -> None:
    async with serve(api_key="secret", **RUNTIME) as app:
        assert (await app.post(path, NEW)).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert (await app.http.post(LOAD, json=NEW, headers=key)).status_code == 200
        described = (await app.http.get("/openapi.json", headers=key)).json()["paths"][path]["post"]
        assert described["description"] and {"200", "400", "401", "404", "503"} <= described["responses"].keys()


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_without_an_engine_the_routes_are_unavailable(path: str) -> None:
    async with serve(**RUNTIME) as app:
        app.engine.ready = False
        refused = await app.post(path, NEW)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("message", "given", "shown"),
    [
        ("/srv/cache/hub/models--o--a/adapter_config.json: r must be", "o/a", "adapter_config.json: r must be"),
        ("/data/a/adapter_config.json: no r", "/data/a", "/data/a/adapter_config.json: no r"),
        ("/data/a/adapter_config.json: no r", "/data/a/", "/data/a/adapter_config.json: no r"),
        ("/data/b/adapter_config.json: no r", "/data/a", "adapter_config.json: no r"),
        ("adapter '/data/a': no such file", "/data/a", "adapter '/data/a': no such file"),
        (
            "/srv/hub/a: https://huggingface.co/a cannot be reached",
            "o/a",
            "a: https://huggingface.co/a cannot be reached",
        ),
        ("adapter 'org/x@v1': not on the hub", "org/x@v1", "adapter 'org/x@v1': not on the hub"),
        (
            "layers.0.q_proj.lora_A: 8/16 rows",
            "/a",
            "layers.0.q_proj.lora_A: 8/16 rows",
        ),
    ],
)
def test_a_refusal_shows_no_directories_but_the_clients_own(message: str, given: str, shown: str) -> None:
    assert without_directories(message, given) == shown


async def test_a_path_of_the_servers_own_is_left_out_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(**RUNTIME) as app:

        async def refuse(*_: object, **__: object) -> None:
            raise RequestError(Kind.INVALID, f"{tmp_path}/snapshots/abc/adapter_model.safetensors: lora_A has NaN")

        monkeypatch.setattr(app.engine.adapters, "load", refuse)
        error = (await app.post(LOAD, NEW)).json()["error"]
        assert error["message"] == "adapter_model.safetensors: lora_A has NaN"
