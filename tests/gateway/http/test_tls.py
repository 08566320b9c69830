"""HTTPS with real handshakes: a certificate of our own authority, clients that check it, and such as should fail."""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from tests.engine_mock import continuation
from tests.gateway.processes.test_launcher import prompt_ids, stream
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, ROOT, Launcher, running_launcher

HOST = "127.0.0.1"
BODY = {"inputs": "hello", "parameters": {"max_new_tokens": 4}}


class Server:
    def __init__(self, launcher: Launcher, authority: trustme.CA) -> None:
        self.port = int(launcher.url.rpartition(":")[2])
        self.url = f"https://{HOST}:{self.port}"
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = write_model(tmp_path_factory.mktemp("tls"))
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    certificate.cert_chain_pems[0].write_to_path(directory / "chain.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    flags = (f"--ssl-certfile={directory}/chain.pem", f"--ssl-keyfile={directory}/key.pem", "--api-workers=2")
    with running_launcher(directory, *flags) as launcher:
        server = Server(launcher, authority)
        deadline = time.monotonic() + PATIENCE
        while not answers(server):
            assert launcher.process.poll() is None and time.monotonic() < deadline, launcher.log.read_text()
            time.sleep(0.02)
        assert f"ready: mock/model (float32, 1 x mock) on {server.url}" in launcher.log.read_text()
        yield server


def answers(server: Server) -> bool:
    try:
        return httpx.get(server.url + "/health", verify=server.trusting, timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def test_a_client_that_trusts_the_authority_is_served_by_every_process(server: Server) -> None:
    for _ in range(8):
        answer = httpx.post(server.url + "/generate", json=BODY, verify=server.trusting, timeout=PATIENCE)
        assert answer.status_code == 200


async def test_a_stream_over_tls_is_the_stream(server: Server) -> None:
    assert await stream(server.url, "hello", 300, verify=server.trusting) == (
        continuation(prompt_ids("hello"), 300),
        None,
    )


def test_a_client_that_does_not_trust_it_ends_the_handshake(server: Server) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(server.url + "/health", timeout=PATIENCE)


def test_plain_http_is_not_answered(server: Server) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/health", timeout=PATIENCE)


def test_nothing_older_than_tls_1_2_is_spoken(server: Server) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    assert handshake(server.port, server.trusting) in ("TLSv1.2", "TLSv1.3")
    assert handshake(server.port, old) is None


def handshake(port: int, context: ssl.SSLContext) -> str | None:
    """The version that was agreed on; None if the server ended it."""
    try:
        with (
            socket.create_connection((HOST, port), PATIENCE) as connection,
            context.wrap_socket(connection, server_hostname=HOST) as tls,
        ):
            return tls.version()
    except (ssl.SSLError, ConnectionError):
        return None


def test_a_key_of_another_certificate_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert(HOST).cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    authority.issue_cert(HOST).private_key_pem.write_to_path(tmp_path / "key.pem")
    flags = [f"--ssl-certfile={tmp_path}/chain.pem", f"--ssl-keyfile={tmp_path}/key.pem", "--port=0"]
    command = [sys.executable, "-m", "gateway.launcher", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --ssl-certfile and --ssl-keyfile cannot be used: ")
    assert done.stderr.count("\n") == 1
