"""`deploy/nginx.conf` in a real nginx, before two servers that answer as ours do."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE, ROOT

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: Debian's package nginx")


@dataclass
class Upstream:
    """A server that answers every request with `status`, or a stream of two events, the second after `second`."""

    status: int = 200
    asked: list[str] = field(default_factory=list)
    second: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @contextmanager
    def running(self) -> Iterator["Upstream"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.second.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                upstream.asked.append(self.path)
                self.send_response(upstream.status)
                if upstream.status != 200:
                    self.send_header("retry-after", "7")
                self.end_headers()
                if self.path == "/generate_stream":
                    self.wfile.write(b"data: 1\n\n")
                    upstream.second.wait(PATIENCE)
                    self.wfile.write(b"data: 2\n\n")

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def upstreams() -> Iterator[tuple[Upstream, Upstream]]:
    with Upstream().running() as first, Upstream().running() as second:
        yield first, second


@contextmanager
def proxy(directory: Path, ports: list[int]) -> Iterator[str]:
    """The URL of nginx with our configuration, other ports, and its files in `directory`."""
    assert NGINX
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = probe.getsockname()[1]
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    for number, port in enumerate(ports):
        text = text.replace(f"server-{number}:80", f"127.0.0.1:{port}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    files = "".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds) + "access_log off;"
    text = text.replace("listen 80;", f"listen 127.0.0.1:{own};").replace("http {", "http {" + files)
    user = "user root root;" if os.getuid() == 0 else ""  # else its workers are nobody, who cannot write here
    (directory / "nginx.conf").write_text(f"{user} daemon off; pid {directory}/pid; error_log stderr;\n{text}")
    process = subprocess.Popen([NGINX, "-c", directory / "nginx.conf", "-e", "stderr"])
    try:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", own)) == 0:
                    break
            time.sleep(0.02)
        assert process.poll() is None
        yield f"http://127.0.0.1:{own}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def url(tmp_path: Path, upstreams: tuple[Upstream, Upstream]) -> Iterator[str]:
    with proxy(tmp_path, [upstream.port for upstream in upstreams]) as url:
        yield url


def post(url: str, body: bytes = b"{}") -> httpx.Response:
    return httpx.post(url, content=body, timeout=PATIENCE)


def test_both_servers_are_asked(url: str, upstreams: tuple[Upstream, Upstream]) -> None:
    for _ in range(8):
        assert post(url + "/generate").status_code == 200
    assert all(upstream.asked for upstream in upstreams)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_full_or_stops_is_passed_over(
    url: str, upstreams: tuple[Upstream, Upstream], status: int
) -> None:
    upstreams[0].status = status
    assert [post(url + "/generate").status_code for _ in range(8)] == [200] * 8
    upstreams[0].status = 200
    upstreams[0].asked.clear()
    assert [post(url + "/generate").status_code for _ in range(8)] == [200] * 8
    assert upstreams[0].asked, "it is asked again at once"


def test_when_all_are_full_the_client_is_told_when_to_come_back(url: str, upstreams: tuple[Upstream, Upstream]) -> None:
    for upstream in upstreams:
        upstream.status = 429
    for _ in range(8):
        refused = post(url + "/generate")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    assert sum(len(upstream.asked) for upstream in upstreams) == 16, "each is asked once for each request"


def test_a_server_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    with Upstream().running() as gone:
        pass
    with Upstream().running() as there, proxy(tmp_path, [gone.port, there.port]) as url:
        assert [post(url + "/generate").status_code for _ in range(8)] == [200] * 8


def test_a_wrong_request_is_asked_once(url: str, upstreams: tuple[Upstream, Upstream]) -> None:
    for upstream in upstreams:
        upstream.status = 422
    assert post(url + "/generate").status_code == 422
    assert sum(len(upstream.asked) for upstream in upstreams) == 1


def test_an_event_arrives_before_the_next_one_is_made(url: str, upstreams: tuple[Upstream, Upstream]) -> None:
    with httpx.stream("POST", url + "/generate_stream", content=b"{}", timeout=PATIENCE) as answer:
        events = answer.iter_raw()
        assert next(events) == b"data: 1\n\n"
        for upstream in upstreams:
            upstream.second.set()
        assert next(events) == b"data: 2\n\n"


def test_the_largest_body_that_a_server_takes_gets_through(url: str) -> None:
    assert post(url + "/generate", b"x" * 2_000_000).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/responses/resp_1", "/api/extra/generate/check", "/dashboard/feed"]
)
def test_what_a_server_remembers_is_asked_of_the_same_server(
    url: str, upstreams: tuple[Upstream, Upstream], path: str
) -> None:
    for _ in range(6):
        assert post(url + path).status_code == 200
    assert sorted(len(upstream.asked) for upstream in upstreams) == [0, 6]


@pytest.mark.parametrize("path", ["/metrics", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_what_concerns_one_server_is_not_to_be_had(url: str, upstreams: tuple[Upstream, Upstream], path: str) -> None:
    assert post(url + path).status_code == 404
    assert not any(upstream.asked for upstream in upstreams)
