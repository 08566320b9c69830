"""gRPC beside HTTP in a real server: its port, all of its processes, TLS, and how it ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from gateway.grpc import open_inference_pb2 as pb
from tests.gateway.grpc.serving import MODEL, path, request, streamed, text, values_of
from tests.gateway.processes.test_api_workers import worker
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, ROOT, Launcher, MockLauncher, running_launcher

pytestmark = pytest.mark.slow

HAS_IPV6 = Path("/proc/net/if_inet6").exists() and "0" * 31 + "1" in Path("/proc/net/if_inet6").read_text()


def address(server: Launcher) -> str:
    """Where the log says that gRPC is."""
    deadline = time.monotonic() + PATIENCE
    while "gRPC on " not in (log := server.log.read_text()):
        assert server.process.poll() is None and time.monotonic() < deadline, log
        time.sleep(0.02)
    return log.partition("gRPC on ")[2].split()[0]


@contextlib.contextmanager
def connected(server: Launcher, credentials: Any = None) -> Iterator[Any]:
    """A channel of its own connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.insecure_channel(address(server), options)
    else:
        channel = grpc.secure_channel(address(server), credentials, options)
    with channel:
        yield channel


def call(channel: Any, name: str, message: Any = None) -> bytes:
    sent = b"" if message is None else message.SerializeToString()
    return bytes(channel.unary_unary(path(name))(sent, timeout=PATIENCE))


def infer(channel: Any) -> str:
    answer = pb.ModelInferResponse.FromString(call(channel, "ModelInfer", request(*text("hello", max_tokens=4))))
    return str(values_of(answer)["text_output"][0])


def listeners(port: int) -> set[str]:
    """The sockets that listen on a port, by their inodes; gRPC's are of IPv6 also where they listen on an address of
    IPv4.
    """
    tables = (each for each in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if each.exists())
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {each[9] for each in lines if each[1].endswith(f":{port:04X}") and each[3] == "0A"}


def test_a_busy_port_is_one_line_and_exit_code_71() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--hostname=127.0.0.1", "--port=0", f"--grpc-port={port}")
        command = [sys.executable, "-m", "gateway.launcher", *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 71
    assert done.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_it_answers_while_the_engine_loads_and_its_port_is_shared_with_no_other_server(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--grpc-port=0", held=True) as server, connected(server) as channel:
        assert pb.ServerLiveResponse.FromString(call(channel, "ServerLive")).live
        assert not pb.ServerReadyResponse.FromString(call(channel, "ServerReady")).ready
        with pytest.raises(grpc.RpcError) as error:
            infer(channel)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        flags = ("--hostname=127.0.0.1", "--port=0", f"--grpc-port={address(server).rpartition(':')[2]}")
        command = [sys.executable, "-m", "gateway.launcher", *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr.count("Address already in use")) == (71, 1)
        server.hold.unlink()
        server.wait_for(200)
        assert infer(channel).startswith("hello")


def test_all_processes_serve_it_and_one_that_dies_comes_back(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--grpc-port=0", "--api-workers=2") as server:
        server.wait_for(200)
        port = int(address(server).rpartition(":")[2])
        before: set[str] = set()  # a process that is killed listens for a moment still
        for _ in range(2):
            deadline = time.monotonic() + PATIENCE
            while len(now := listeners(port)) != 2 or now == before:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            server.wait_for(200)
            for _ in range(12):
                with connected(server) as channel:
                    assert infer(channel).startswith("hello")
            before = now
            os.kill(worker(server), signal.SIGKILL)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--grpc-port=0", "--hostname=::1") as server:
        with connected(server) as channel:
            call(channel, "ServerLive")
        assert address(server).startswith("[::1]:")


def test_a_client_that_trusts_the_certificate_is_served_over_tls(tmp_path: Path) -> None:
    authority, directory = trustme.CA(), write_model(tmp_path)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(directory / "both.pem")
    trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with running_launcher(directory, "--grpc-port=0", f"--ssl-certfile={directory}/both.pem") as server:
        with connected(server, trusting) as channel:
            deadline = time.monotonic() + PATIENCE
            while not pb.ServerReadyResponse.FromString(call(channel, "ServerReady")).ready:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert infer(channel).startswith("hello")
        for credentials in (grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes()), None):
            with connected(server, credentials) as channel, pytest.raises(grpc.RpcError):
                channel.unary_unary(path("ServerLive"))(b"", timeout=5)


def streams(channel: Any, *requests: pb.ModelInferRequest, ends: bool = True) -> Any:
    """A stream with these requests; one that does not end waits for more."""

    def sent() -> Iterator[bytes]:
        yield from (each.SerializeToString() for each in requests)
        while not ends:
            time.sleep(0.1)

    answer = pb.ModelStreamInferResponse.FromString
    return channel.stream_stream(path("ModelStreamInfer"), response_deserializer=answer)(sent(), timeout=PATIENCE)


def held(server: MockLauncher, channel: Any, *, ends: bool) -> Any:
    """A stream that has had its first answer."""
    server.hold.touch()
    stream = streams(channel, streamed("hello", "a", max_tokens=100), ends=ends)
    next(stream)
    return stream


@pytest.mark.parametrize("ends", [True, False])
def test_sigterm_lets_streams_finish_and_turns_new_requests_away(tmp_path: Path, ends: bool) -> None:
    """Also of a client that never says that it has no more requests."""
    with running_launcher(write_model(tmp_path), "--grpc-port=0", "--api-workers=2") as server:
        server.wait_for(200)
        with connected(server) as channel:
            stream = held(server, channel, ends=ends)
            server.process.terminate()
            server.wait_for(503)
            with pytest.raises(grpc.RpcError) as error:
                while True:
                    call(channel, "ModelMetadata", pb.ModelRequest(name=MODEL))
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert error.value.details() == "the server is shutting down"
            server.hold.unlink()
            with contextlib.suppress(grpc.RpcError):  # in which a stream ends that is not over
                last = None
                for answer in stream:
                    last = answer
                    if answer.infer_response.parameters["triton_final_response"].bool_param:
                        break
            assert last is not None and not last.error_message
            assert last.infer_response.parameters["triton_final_response"].bool_param
            assert server.process.wait(PATIENCE) == 0
        assert "Traceback" not in server.log.read_text()


def test_a_second_sigterm_ends_what_runs(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--grpc-port=0") as server:
        server.wait_for(200)
        with connected(server) as channel:
            stream = held(server, channel, ends=True)
            server.process.terminate()
            server.wait_for_line("stopping: 1 requests are running")
            server.process.terminate()
            assert "".join(answer.error_message for answer in stream) == "the server is shutting down"
            assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert "Traceback" not in server.log.read_text()
