"""Every line of the Dockerfile is carried out, and what comes out is served from, by buildah without Docker.

Opt-in, because it takes root and minutes, and no base is to be had without a registry:

    mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm base.tar
    printf 'FROM scratch\nADD base.tar /\n' | buildah bud --isolation chroot --tag localhost/base -f - .
    pip download --dest wheels '.[otel,ngrok]' setuptools wheel
    TEST_IMAGE_BASE=localhost/base TEST_IMAGE_WHEELS=wheels pytest tests/deploy/test_image.py

STORAGE_DRIVER=vfs is for machines where overlay is missing. What it does not prove: the published base, CUDA, Docker's
own run-time.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import container
from tests.deploy.container import Container
from tests.processes import PATIENCE
from tests.servers import READY_SECONDS, arguments, descendants

BASE, WHEELS = os.environ.get("TEST_IMAGE_BASE"), os.environ.get("TEST_IMAGE_WHEELS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BASE and WHEELS), reason="TEST_IMAGE_BASE and TEST_IMAGE_WHEELS are not set"),
]
OPTIONS = ("--model-id=/model", "--max-batch-size=4", "--max-batch-prefill-tokens=64")
ASK = """
import json, sys, urllib.error, urllib.request
path, body = sys.argv[1:]
request = urllib.request.Request("http://127.0.0.1" + path, body.encode() or None, {"content-type": "application/json"})
try:
    answer = urllib.request.urlopen(request, timeout=50)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit("nothing listens")
print(json.dumps([answer.status, answer.read().decode()]))
"""
Start = Callable[..., AbstractContextManager[Container]]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    assert BASE and WHEELS
    return container.build(BASE, Path(WHEELS).absolute(), tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def configuration(image: str) -> dict[str, Any]:
    return container.configuration(image)


@pytest.fixture
def start(image: str, configuration: dict[str, Any], tiny_model: Path, tmp_path: Path) -> Iterator[Start]:
    """A container; its volume is `data`, which belongs to the image's user unless a test says otherwise."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 10001, 0)
    for path in [tiny_model, *tiny_model.iterdir()]:
        path.chmod(0o755)
    with container.unpacked(image) as root:

        def run(*arguments: str, **how: Any) -> AbstractContextManager[Container]:
            return container.running(root, configuration, tmp_path / "log", (data, tiny_model), *arguments, **how)

        yield run


def ask(server: Container, path: str, body: object = None) -> tuple[int, str]:
    """Status and body of an answer; (0, "") if nothing listens."""
    return answer(server.client(ASK, path, json.dumps(body) if body else ""))


def answer(client: "subprocess.Popen[str]") -> tuple[int, str]:
    written, _ = client.communicate(timeout=PATIENCE)
    status, text = json.loads(written) if client.returncode == 0 else (0, "")
    return status, text


def until(server: Container, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert server.process.poll() is None, server.log.read_text()
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.2)


def wait_ready(server: Container) -> None:
    until(server, lambda: ask(server, "/health")[0] == 200, READY_SECONDS)


def identity(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def engine_of(server: Container) -> int:
    return next(pid for pid in descendants(server.first()) if "serve" in arguments(pid))


def test_it_serves_on_port_80_without_root_network_or_a_root_to_write_to(
    start: Start, configuration: dict[str, Any], tmp_path: Path
) -> None:
    with start(*OPTIONS) as server:
        until(server, lambda: ask(server, "/health/live")[0] == 200)
        assert server.run(*configuration["Healthcheck"]["Test"][1:]).returncode == 0, "before it is ready"
        wait_ready(server)
        status, text = ask(server, "/generate", {"inputs": "The river", "parameters": {"max_new_tokens": 4}})
        assert status == 200 and json.loads(text)["generated_text"]
        family = [server.first(), *descendants(server.first())]
        assert len(family) > 2, "tini, the launcher, the engine"
        for pid in family:
            its = identity(pid)
            assert its["Uid"].split() == ["10001"] * 4 and its["Gid"].split() == ["0"] * 4
            assert int(its["CapEff"], 16) == int(its["CapPrm"], 16) == 0
        assert server.run("touch", "/opt/x").returncode != 0, "the root can be written to"
        assert server.run(*configuration["Healthcheck"]["Test"][1:]).returncode == 0
        server.stop()
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()
    assert (tmp_path / "data" / ".cache").stat().st_uid == 10001


def test_sigterm_lets_a_running_request_end(start: Start) -> None:
    with start(*OPTIONS, "--engine-hang-timeout=600") as server:
        wait_ready(server)
        body = {"inputs": "The river", "parameters": {"max_new_tokens": 100}}
        expected = ask(server, "/generate", body)
        engine = engine_of(server)
        os.kill(engine, signal.SIGSTOP)  # so that the next request still runs when the drain begins
        client = server.client(ASK, "/generate", json.dumps(body))
        until(server, lambda: "tgi_request_count 2.0" in ask(server, "/metrics")[1])
        server.stop()
        until(server, lambda: ask(server, "/health")[0] == 503)
        os.kill(engine, signal.SIGCONT)
        assert answer(client) == expected
        assert expected[0] == 200
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()


def test_what_a_killed_engine_leaves_is_reaped(start: Start) -> None:
    with start(*OPTIONS) as server:
        wait_ready(server)
        os.kill(engine_of(server), signal.SIGKILL)
        until(server, lambda: ask(server, "/health")[0] == 503)
        wait_ready(server)
        states = {pid: identity(pid)["State"] for pid in descendants(server.first())}
        assert not any(state.startswith("Z") for state in states.values()), states


def test_with_a_volume_of_root_it_serves_and_warns_and_root_may_be_the_user(start: Start, tmp_path: Path) -> None:
    os.chown(tmp_path / "data", 0, 0)
    with start(*OPTIONS) as server:
        wait_ready(server)
        assert "warning: user 10001 cannot write to /data/.cache" in server.log.read_text()
    assert not list((tmp_path / "data").iterdir())
    with start(*OPTIONS, user="0:0") as server:
        wait_ready(server)


def test_any_user_of_group_0_may_be_the_user(start: Start, tmp_path: Path) -> None:
    """`docker run --user 4711`, and OpenShift, which chooses a number."""
    (tmp_path / "data").chmod(0o775)
    with start(*OPTIONS, user="4711:0") as server:
        wait_ready(server)


def test_a_wrong_option_ends_with_the_launchers_exit_code(start: Start) -> None:
    with start("--no-such-option") as server:
        assert server.process.wait(PATIENCE) == 2
        assert "--no-such-option" in server.log.read_text()
