"""The admin listener: probes and metrics on a port of their own, whatever the main one is busy with."""

from pathlib import Path

import httpx
import pytest

from gateway.admin import create_admin_app
from gateway.config.command_line import parse
from gateway.engine.interface import ReplicaStatus
from gateway.processes.http_process import admin_config
from jaxengine.options.option import UsageError
from tests.gateway.fixtures import serve
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, running_launcher

PROBES = ("/", "/health", "/ping", "/health/live", "/health/ready", "/metrics")


async def test_it_answers_probes_and_metrics_without_a_key_and_nothing_else() -> None:
    async with serve(api_key="hush", admin_port=0) as app:
        assert app.engine.description is not None
        app.gateway.metrics.engine_ready(0, app.engine.description, 64)
        transport = httpx.ASGITransport(create_admin_app(app.gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as http:
            assert {path: (await http.get(path)).status_code for path in PROBES} == dict.fromkeys(PROBES, 200)
            assert b'model_name="mock/model"' in (await http.get("/metrics")).content
            for path in ("/generate", "/v1/completions"):
                assert (await http.post(path, json={})).status_code == 404
            for path in ("/info", "/v1/models", "/docs", "/openapi.json"):
                assert (await http.get(path)).status_code == 404


async def test_the_main_port_answers_them_too_unless_told_otherwise() -> None:
    async with serve(admin_port=0) as app:
        assert {path: (await app.http.get(path)).status_code for path in PROBES} == dict.fromkeys(PROBES, 200)
    async with serve(admin_port=0, admin_exclusive=True) as app:
        assert {(await app.http.get(path)).status_code for path in PROBES} == {404, 405}  # / takes POST
        assert (await app.post("/generate", inputs="hello")).status_code == 200


class Asked:
    """Keeps what an operator asks for."""

    restarting = False

    def __init__(self) -> None:
        self.drained: list[int] = []

    def drain(self, number: int) -> None:
        self.drained.append(number)


async def asked_to_drain(index: str, client: str = "127.0.0.1", **headers: str) -> tuple[int, list[int]]:
    """The status of a call that comes from `client`, through all that the listener puts around the routes; and what was
    begun with the only replica.
    """
    async with serve(admin_port=0) as app:
        app.engine.replicas = [ReplicaStatus(0, "ready", "", 0, 0, 0.0)]
        app.gateway.operations = operations = Asked()  # type: ignore[assignment]
        config = admin_config(create_admin_app(app.gateway))
        config.load()
        transport = httpx.ASGITransport(config.loaded_app, raise_app_exceptions=False, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as http:
            answer = await http.post(f"/admin/replicas/{index}/drain", headers=headers)
        return answer.status_code, operations.drained


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_without_a_key_programs_of_this_machine_may_operate(client: str) -> None:
    assert await asked_to_drain("0", client) == (202, [0])


@pytest.mark.parametrize("client", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "unknown", ""])
async def test_without_a_key_nobody_else_may(client: str) -> None:
    assert await asked_to_drain("0", client) == (403, [])


@pytest.mark.parametrize(("client", "named"), [("10.0.0.1", "127.0.0.1"), ("127.0.0.1", "10.0.0.1"), ("::1", "?")])
async def test_a_header_does_not_say_where_a_client_is(
    client: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's, as containers have it
    headers = {"x-forwarded-for": named}
    assert await asked_to_drain("0", client, **headers) == (403, [])


@pytest.mark.parametrize("index", ["1", "-1", "00", "x", "9" * 5000, "\u0660"])
async def test_what_is_no_replica_is_not_found(index: str) -> None:
    assert await asked_to_drain(index) == (404, [])


def test_being_the_only_one_needs_a_port() -> None:
    with pytest.raises(UsageError, match="--admin-exclusive needs --admin-port"):
        parse(["--admin-exclusive"], {})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_launcher_listens_there_on_loopback(tmp_path: Path, workers: int) -> None:
    flags = ("--admin-port=0", f"--api-workers={workers}")
    with running_launcher(write_model(tmp_path), *flags) as server:
        server.wait_for(200)
        assert (admin := server.admin_url) != server.url and admin.startswith("http://127.0.0.1:")
        assert httpx.get(admin + "/health", timeout=PATIENCE).status_code == 200
        assert b"tgi_request_count" in httpx.get(admin + "/metrics", timeout=PATIENCE).content


def test_a_port_that_is_taken_ends_the_start_in_one_line(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path)) as server:
        port = server.url.rpartition(":")[2]
        (second := tmp_path / "second").mkdir()
        with running_launcher(write_model(second), f"--admin-port={port}") as refused:
            assert refused.process.wait(PATIENCE) == 71
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.log.read_text()
