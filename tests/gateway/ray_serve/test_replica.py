"""What a replica takes from its machine: the environment, ports, what engines write; without Ray."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.config.command_line import parse
from gateway.http.listener import CannotListen, bind
from gateway.processes.engine_process import command
from gateway.ray_serve import replica
from gateway.ray_serve.replica import EngineLines, Replica, admin_listener
from jaxengine.options.option import UsageError


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_environment_counts_except_for_what_others_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image says PORT, and how many GPUs there are was said when Serve placed the replica."""
    for name, value in {"PORT": "80", "NUM_SHARD": "8", "REPLICAS": "2", "MODEL_ID": "org/model"}.items():
        monkeypatch.setenv(name, value)
    options = Replica(["--replicas=1"], command).options
    assert (options.model_id, options.num_shard, options.replicas) == ("org/model", None, 1)
    assert options.port == parse([], {}).port


@pytest.mark.parametrize("wrong", ["--max-best-of=0", "--reasoning-parser=x", "--replicas=3"])
def test_what_cannot_be_served_here_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(UsageError):
        Replica([wrong], command)


def test_replicas_on_one_machine_have_admin_ports_one_after_another(stack: ExitStack) -> None:
    first = stack.enter_context(bind("127.0.0.1", 0)[0]).getsockname()[1]
    found = []
    for _ in range(2):
        listener = admin_listener(parse([f"--admin-port={first}"], {}))
        assert listener is not None
        found.append(stack.enter_context(listener).getsockname()[1])
    assert first < found[0] < found[1] < first + replica.ADMIN_PORTS


def test_no_free_admin_port_is_an_error(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "ADMIN_PORTS", 1)
    port = stack.enter_context(bind("127.0.0.1", 0)[0]).getsockname()[1]
    with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}"):
        admin_listener(parse([f"--admin-port={port}"], {}))


def test_without_an_admin_port_there_is_no_listener() -> None:
    assert admin_listener(parse([], {})) is None


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"INFO: loading\nerror: no such model\nINFO: bye\n", "error: no such model"),
        (b"Traceback\nValueError: x", "Traceback\nValueError: x"),
        (b"\xff\n", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_engines_write_is_passed_on_and_tells_why_they_ended(
    written: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = EngineLines()
    os.write(lines.pipe.fileno(), written)
    lines.close()
    assert lines.reason == reason
    assert capsys.readouterr().err == written.decode(errors="replace")
