"""The names of the model: `/v1` accepts all of them, answers and metrics show the first."""

import socket
from pathlib import Path

import pytest

from gateway.config.command_line import parse
from gateway.processes.http_process import HttpProcess
from gateway.processes.worker_spec import WorkerSpec
from gateway.request.shared_counters import SharedCounters
from jaxengine.telemetry.tracing import Tracing
from tests.gateway.fixtures import events, serve

NAMES = ("mine", "org/other")
CHAT = {"messages": [{"role": "user", "content": "lo"}]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--served-model-name", *NAMES],
        [f"--served-model-name={name}" for name in NAMES],
        ["--served-model-name", NAMES[0], "--served-model-name", NAMES[1], "--port=1"],
    ],
)
def test_names_follow_one_flag_or_each_its_own(arguments: list[str]) -> None:
    assert parse(arguments, {}).served_model_name == NAMES


def test_names_are_a_comma_list_in_the_environment() -> None:
    assert parse([], {"SERVED_MODEL_NAME": ",".join(NAMES)}).served_model_name == NAMES


async def test_every_name_is_served_and_the_first_is_answered() -> None:
    async with serve(served_model_name=NAMES) as app:
        for name in (*NAMES, "tgi", None):
            assert (await app.post("/v1/completions", prompt="lo", model=name)).json()["model"] == "mine"
            stream = await app.post("/v1/chat/completions", {**CHAT, "model": name, "stream": True})
            assert {chunk["model"] for chunk in events(stream)[:-1]} == {"mine"}
            assert (await app.post("/tokenize", prompt="lo", model=name)).status_code == 200


async def test_the_models_own_id_is_not_served_beside_its_names() -> None:
    async with serve(served_model_name=NAMES) as app:
        refused = await app.post("/v1/completions", prompt="lo", model="mock/model")
        assert refused.status_code == 404
        message = "the model `mock/model` does not exist; this server serves `mine`"
        assert refused.json()["error"]["message"] == message


async def test_there_is_a_card_for_every_name_with_the_model_as_its_root() -> None:
    async with serve(served_model_name=NAMES) as app:
        listed = (await app.http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["root"]) for card in listed] == [(name, "mock/model") for name in NAMES]
        for card in listed:
            assert (await app.http.get(f"/v1/models/{card['id']}")).json() == card
        assert (await app.http.get("/v1/models/mock/model")).status_code == 404


async def test_info_names_the_model_itself() -> None:
    async with serve(served_model_name=NAMES) as app:
        assert (await app.http.get("/info")).json()["model_id"] == "mock/model"


async def test_vllms_series_carry_the_first_name(tmp_path: Path) -> None:
    with socket.socket() as listener:
        spec = WorkerSpec(0, listener, (tmp_path / "engine.sock",), "token", SharedCounters())
        metrics = HttpProcess(parse(["--served-model-name", *NAMES], {}), spec, Tracing()).metrics
    async with serve() as app:
        assert app.engine.description is not None
        metrics.engine_ready(0, app.engine.description, 63)
    scrape = metrics.render(named=True)
    assert b'model_name="mine"' in scrape and b"mock/model" not in scrape
