"""`deploy/healthcheck.py` beside real servers: exit code 0 means that Docker calls the container healthy."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.gateway.toys import write_model
from tests.processes import ROOT, running_launcher


def healthy(directory: Path) -> bool:
    """What the check says of the server whose runtime directory is in `directory`, as in a container of its own."""
    command = [sys.executable, "-I", ROOT / "deploy" / "healthcheck.py"]
    done = subprocess.run(command, env={"SHARD_UDS_PATH": f"{directory}/s"}, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode == 0


def test_a_server_is_healthy_on_whatever_port_while_its_model_loads(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), held=True) as server:
        assert server.status("/health") == 503
        assert healthy(tmp_path)


def test_a_server_with_tls_is(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("llm.example")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    with running_launcher(write_model(tmp_path), f"--ssl-certfile={tmp_path}/both.pem"):
        assert healthy(tmp_path)


def test_a_server_whose_probes_are_on_another_port_is(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--admin-port=0", "--admin-exclusive"):
        assert healthy(tmp_path)


def test_a_server_that_has_not_begun_or_is_gone_is_not(tmp_path: Path) -> None:
    assert not healthy(tmp_path)
    (tmp_path / "s-1").mkdir()  # left by a server that was killed
    assert not healthy(tmp_path)


@pytest.mark.slow
def test_a_server_that_hangs_is_not(tmp_path: Path) -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        (tmp_path / f"s-{hung.getsockname()[1]}").mkdir()
        assert not healthy(tmp_path)
