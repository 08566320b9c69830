"""Adapters as client libraries name them, each against a launcher whose mock engine answers differently by adapter."""

from pathlib import Path

import pytest

from tests.clients.environments import run_script
from tests.engine_mock import continuation
from tests.gateway.toys import byte_level, write_model
from tests.processes import running_launcher

pytestmark = pytest.mark.slow

PATHS = {"one": "org/one", "org/two": "org/two", "new": "org/new@v1"}


def test_openais_sdk_and_huggingface_hub_name_adapters_and_load_them(tmp_path: Path) -> None:
    options = ("--lora-adapters=one=org/one,org/two", "--allow-runtime-lora-updating")
    with running_launcher(write_model(tmp_path), *options) as server:
        server.wait_for(200)
        job = {"url": server.url, "prompt": "hello", "names": ["one", "org/two"], "new": "new", "path": PATHS["new"]}
        answer = run_script("modern", "adapters", **job)
    assert answer["listed"] == ["mock/model", *PATHS]
    tokenizer = byte_level()
    for name, path in PATHS.items():
        text = tokenizer.decode(continuation(tokenizer.encode("hello").ids, 9, path), skip_special_tokens=True)
        seen = answer["seen"][name]
        assert (seen["card"], seen["model"]) == (name, [name, name])
        assert {seen[way] for way in ("completion", "stream", "hub", "hub_stream")} == {text}, name
    assert len(answer["refusals"]) == 3 and all("new" in each for each in answer["refusals"])
