"""A server with adapters: requests name them on every route, and they come and go while it serves, and outlive it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from tests.processes import PATIENCE
from tests.servers import Server, serving
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

TEXT, NEW = "The quick brown fox", 12
NAMES = ("sql", "chat", "late")


@pytest.fixture(scope="module")
def base(tiny: Callable[[str], Path]) -> Path:
    return tiny("llama2_gqa")


@pytest.fixture(scope="module")
def answers(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """What PEFT generates with each adapter, and without."""
    prompt, made = Tokenizer.from_file(str(base / "tokenizer.json")).encode(TEXT).ids, {}
    for seed, name in enumerate(NAMES):
        model = adapted(base, seed=seed)
        model.save_pretrained(adapters_in(tmp_path_factory) / name)
        made[name] = _greedy(model, prompt)
    with model.disable_adapter():
        made[""] = _greedy(model, prompt)
    assert len({*map(tuple, made.values())}) == len(made)
    return made


def adapters_in(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp() / "adapters"


@pytest.fixture(scope="module")
def server(base: Path, answers: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = adapters_in(tmp_path_factory)
    options = (
        f"--lora-adapters=sql={found}/sql",
        f"--lora-modules=chat={found}/chat",
        *("--allow-runtime-lora-updating", "--max-loras=2", "--served-model-name=tiny", "--max-batch-size=8"),
    )
    with serving(tmp_path_factory.mktemp("adapters"), f"--model-id={base}", *options) as running:
        running.wait_ready()
        yield running


def generated(server: Server, adapter: str | None) -> list[int]:
    parameters: dict[str, Any] = {"max_new_tokens": NEW, "details": True, "adapter_id": adapter}
    body = {"inputs": TEXT, "parameters": parameters}
    reply = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    return [token["id"] for token in reply.json()["details"]["tokens"]]


def test_each_request_is_answered_as_peft_does(server: Server, answers: dict[str, list[int]]) -> None:
    assert generated(server, None) == answers[""]
    for name in ("sql", "chat", "sql"):
        assert generated(server, name) == answers[name]


def test_an_adapter_is_a_model_of_openai_s_api(server: Server, answers: dict[str, list[int]], base: Path) -> None:
    cards = {card["id"]: card for card in httpx.get(server.url + "/v1/models", timeout=PATIENCE).json()["data"]}
    assert {"tiny", "sql", "chat"} <= cards.keys()
    assert cards["sql"]["parent"] == "tiny"
    tokens = Tokenizer.from_file(str(base / "tokenizer.json"))
    prompt = tokens.encode(TEXT).ids
    for name in ("sql", "chat", "tiny"):
        body = {"model": name, "prompt": TEXT, "max_tokens": NEW, "temperature": 0}
        made = httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).json()
        assert made["model"] == name
        text = tokens.decode([*prompt, *answers.get(name, answers[""])])
        assert made["choices"][0]["text"] == text.removeprefix(tokens.decode(prompt))
    refused = httpx.post(server.url + "/v1/completions", json={"model": "nobody", "prompt": TEXT}, timeout=PATIENCE)
    assert refused.status_code == 404


def test_adapters_come_and_go_and_outlive_the_engine(
    server: Server, answers: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    load = {"lora_name": "late", "lora_path": str(adapters_in(tmp_path_factory) / "late")}
    reply = httpx.post(server.url + "/v1/load_lora_adapter", json=load, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    assert generated(server, "late") == answers["late"]
    assert generated(server, "sql") == answers["sql"]  # three adapters in two slots
    server.kill_engine()
    for name in NAMES:
        assert generated(server, name) == answers[name]
    unloaded = httpx.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": "late"}, timeout=PATIENCE)
    assert unloaded.status_code == 200, unloaded.text
    body = {"inputs": TEXT, "parameters": {"adapter_id": "late"}}
    refused = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE)
    assert refused.status_code == 422 and "late" in refused.json()["error"]
    assert generated(server, "chat") == answers["chat"]
    assert server.gauges()['textgen_compiles_after_warmup_total{engine="0"}'] == 0


def test_a_restarted_engine_needs_no_directory_that_it_served_before(
    base: Path, answers: dict[str, list[int]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nor does it lose the room for ranks that the one whose directory is gone had brought."""
    found, moved = adapters_in(tmp_path_factory), tmp_path / "moved"
    adapted(base, r=32).save_pretrained(moved)
    options = (f"--lora-adapters=sql={moved}", "--allow-runtime-lora-updating", "--max-batch-size=4")
    with serving(tmp_path, f"--model-id={base}", *options) as server:
        server.wait_ready()
        for name, path in (("sql", found / "sql"), ("wide", moved), ("chat", found / "chat")):
            load = {"lora_name": name, "lora_path": str(path), "load_inplace": True}
            assert httpx.post(server.url + "/v1/load_lora_adapter", json=load, timeout=PATIENCE).is_success
        wide = generated(server, "wide")
        kept = tmp_path / "kept"
        moved.rename(kept)
        load = {"lora_name": "wide", "lora_path": str(kept), "load_inplace": True}
        assert httpx.post(server.url + "/v1/load_lora_adapter", json=load, timeout=PATIENCE).is_success
        server.kill_engine()
        assert generated(server, "sql") == answers["sql"]
        assert generated(server, "wide") == wide


def test_an_adapter_that_cannot_be_served_is_a_400_that_says_why_and_streams_go_on(
    server: Server, answers: dict[str, list[int]], base: Path, tmp_path: Path
) -> None:
    wide, empty, damaged = tmp_path / "wide", tmp_path / "empty", tmp_path / "damaged"
    adapted(base, r=32).save_pretrained(wide)
    empty.mkdir()
    shutil.copytree(wide, damaged)
    (damaged / "adapter_model.safetensors").write_bytes(b"x" * 100)
    for path, status, words in (
        (wide, 400, "32"),
        (empty, 400, "adapter_config.json"),
        (damaged, 400, "adapter_model.safetensors"),
        (tmp_path / "nowhere", 404, "nowhere"),
    ):
        load = {"lora_name": "broken", "lora_path": str(path)}
        refused = httpx.post(server.url + "/v1/load_lora_adapter", json=load, timeout=PATIENCE)
        assert refused.status_code == status, refused.text
        error = refused.json()["error"]
        assert words in error["message"] and error["param"] == "lora_path", error
    assert generated(server, "sql") == answers["sql"]
    body = {"inputs": TEXT, "parameters": {"adapter_id": "broken"}}
    assert httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).status_code == 422


def _greedy(model: Any, prompt: list[int]) -> list[int]:
    with torch.inference_mode():
        made = model.generate(input_ids=torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
    return list(made[0, len(prompt) :].tolist())
