"""`--ngrok`, with a library of ngrok's that forwards a port of this machine (`tests/fake_ngrok`)."""

import asyncio
import importlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.listener import bind
from gateway.processes import tunnel as module
from gateway.processes.signals import ENDS
from gateway.processes.tunnel import Tunnel, target_url
from tests.fake_ngrok import KEY, TOKEN, FakeNgrok
from tests.gateway.toys import write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, ROOT, running_launcher, until
from tests.servers import arguments, descendants

PROMPT = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}


@pytest.fixture
def ngrok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNgrok:
    """The library in this process too, where a tunnel is tried again at once."""
    (directory := tmp_path / "ngrok").mkdir()
    fake = FakeNgrok(directory)
    monkeypatch.setenv("FAKE_NGROK", str(directory))
    monkeypatch.syspath_prepend(fake.environment["PYTHONPATH"].partition(":")[0])
    monkeypatch.delitem(sys.modules, "ngrok", raising=False)
    monkeypatch.setitem(sys.modules, "ngrok", importlib.import_module("ngrok"))
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    return fake


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    """The URL of a server that answers each request with its first line and a second later with "end"."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        writer.write(first)
        await writer.drain()
        await asyncio.sleep(1)
        writer.write(b"end")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def asked(ngrok: FakeNgrok, call: str, times: int = 1) -> dict[str, Any]:
    return await asyncio.to_thread(ngrok.wait_for, call, times)


@pytest.mark.parametrize(
    ("edge", "target", "expected"),
    [
        ("edghts_2b7", "http://127.0.0.1:9", {"proto": "labeled", "edge": "edghts_2b7"}),
        ("me.ngrok.app", "http://127.0.0.1:9", {"proto": "http", "domain": "me.ngrok.app"}),
        (None, "http://127.0.0.1:9", {"proto": "http"}),
        (None, "https://127.0.0.1:9", {"proto": "http", "verify_upstream_tls": False}),
        ("edghts_2b7", "https://[::1]:9", {"proto": "labeled", "edge": "edghts_2b7", "verify_upstream_tls": False}),
    ],
)
async def test_an_edge_is_a_label_and_anything_else_a_domain(
    ngrok: FakeNgrok, edge: str | None, target: str, expected: dict[str, Any]
) -> None:
    tunnel = Tunnel(target, TOKEN, edge)
    tunnel.open()
    public = (await asked(ngrok, "listen"))["public"]
    await tunnel.stop()
    assert ngrok.calls == [
        ("connect", {"authtoken": TOKEN, "blocked": sorted(ENDS)}),
        ("listen", {"to_url": target, "public": public, **expected}),
        ("close listener", {}),
        ("close session", {}),
    ]


@pytest.mark.parametrize(("edge", "address"), [(None, "http://127.0.0.1:"), ("edghts_2b7", "that of edghts_2b7, ")])
async def test_the_public_address_is_logged_once(
    ngrok: FakeNgrok, caplog: pytest.LogCaptureFixture, edge: str | None, address: str
) -> None:
    caplog.set_level("INFO", "gateway")
    tunnel = Tunnel("http://127.0.0.1:9", TOKEN, edge)
    tunnel.open()
    tunnel.open()  # the engine is ready again after a restart
    await asked(ngrok, "listen")
    await until(lambda: "public address" in caplog.text)
    await tunnel.stop()
    [line] = [record.message for record in caplog.records if record.name == "gateway"]
    assert line.startswith(f"public address: {address}") and line.endswith(", forwarded to http://127.0.0.1:9")


async def test_a_refused_tunnel_is_tried_again_after_longer_and_longer_pauses_and_the_token_is_not_logged(
    ngrok: FakeNgrok, caplog: pytest.LogCaptureFixture
) -> None:
    ngrok.fail(3)
    tunnel = Tunnel("http://127.0.0.1:9", TOKEN, None)
    tunnel.open()
    await asked(ngrok, "listen")
    await tunnel.stop()
    said = "cannot open the ngrok tunnel: failed to connect session: The authtoken … is not one.: ERR_NGROK_105"
    lines = [record.message for record in caplog.records if record.name == "gateway"]
    assert lines == [f"{said}; trying again in {pause} s" for pause in ("0.01", "0.02", "0.04")]
    assert [name for name, _ in ngrok.calls[:5]] == ["connect"] * 4 + ["listen"]
    assert TOKEN not in caplog.text


async def test_pauses_grow_to_a_minute(monkeypatch: pytest.MonkeyPatch, ngrok: FakeNgrok) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    real = asyncio.sleep
    monkeypatch.setattr(module, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    ngrok.fail(1000)
    tunnel = Tunnel("http://127.0.0.1:9", TOKEN, None)
    tunnel.open()
    while len(pauses) < 8:
        await real(0.01)
    await tunnel.stop()
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_lost_tunnel_is_opened_again(ngrok: FakeNgrok, caplog: pytest.LogCaptureFixture, upstream: str) -> None:
    tunnel = Tunnel(upstream, TOKEN, "me.ngrok.app")
    tunnel.open()
    first = await asked(ngrok, "listen")
    ngrok.cut()
    second = await asked(ngrok, "listen", 2)
    assert "lost the ngrok tunnel: transport error; trying again in 0.01 s" in caplog.text
    assert first["public"] != second["public"] and second["domain"] == "me.ngrok.app"
    opening = ["connect", "listen"]
    assert [name for name, _ in ngrok.calls] == [*opening, "close listener", "close session", *opening]
    assert await get(second["public"]) == b"GET / HTTP/1.1\r\nend"
    await tunnel.stop()


async def test_a_tunnel_that_ngrok_closes_is_opened_again(
    ngrok: FakeNgrok, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.import_module("ngrok").Listener, "join", lambda self: asyncio.sleep(0))
    tunnel = Tunnel("http://127.0.0.1:9", TOKEN, None)
    tunnel.open()
    await asked(ngrok, "listen", 2)
    await tunnel.stop()
    assert "lost the ngrok tunnel: ngrok has closed it; trying again in 0.01 s" in caplog.text


async def test_a_closed_tunnel_takes_no_more_connections_and_lets_those_that_run_end(
    ngrok: FakeNgrok, upstream: str
) -> None:
    tunnel = Tunnel(upstream, TOKEN, None)
    tunnel.open()
    public = (await asked(ngrok, "listen"))["public"]
    running = asyncio.create_task(get(public))
    await asyncio.sleep(0.3)
    await tunnel.close()
    assert ngrok.calls[-1] == ("close listener", {})
    with pytest.raises(ConnectionRefusedError):
        await get(public)
    tunnel.open()
    assert await running == b"GET / HTTP/1.1\r\nend"
    await tunnel.stop()
    assert ngrok.calls[-1] == ("close session", {})


async def test_a_tunnel_that_closes_while_it_opens_leaves_no_session(
    ngrok: FakeNgrok, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an address that ngrok has opened, and not yet told of, only the session's end is the end."""
    library = importlib.import_module("ngrok")
    opening = asyncio.Event()

    async def listen(self: Any, target: str) -> None:
        opening.set()
        await asyncio.sleep(PATIENCE)

    monkeypatch.setattr(library.Endpoint, "listen_and_forward", listen)
    tunnel = Tunnel(upstream, TOKEN, None)
    tunnel.open()
    await opening.wait()
    await tunnel.close()
    assert ngrok.calls[-1] == ("close session", {})


async def get(url: str) -> bytes:
    """What comes back for a request, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    with closing(writer):
        return await reader.read()


async def test_a_library_that_does_not_answer_is_not_waited_for(
    ngrok: FakeNgrok, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.1)
    library = importlib.import_module("ngrok")
    for name in ("Listener", "Session"):
        monkeypatch.setattr(getattr(library, name), "close", lambda self: asyncio.sleep(PATIENCE))
    tunnel = Tunnel("http://127.0.0.1:9", TOKEN, None)
    tunnel.open()
    await asked(ngrok, "listen")
    async with asyncio.timeout(PATIENCE / 2):
        await tunnel.stop()


@pytest.mark.parametrize(
    ("hostname", "tls", "expected"),
    [
        ("0.0.0.0", False, "http://127.0.0.1"),
        ("127.0.0.2", False, "http://127.0.0.2"),
        ("::", False, "http://[::1]"),
        ("::1", False, "http://[::1]"),
        ("0.0.0.0", True, "https://127.0.0.1"),
        ("::", True, "https://localhost"),
    ],
)
def test_the_tunnel_leads_to_the_address_by_which_this_machine_reaches_itself(
    hostname: str, tls: bool, expected: str
) -> None:
    try:
        [listener] = bind(hostname, 0)
    except OSError:
        pytest.skip("no IPv6")
    with listener:
        assert target_url(listener, tls=tls) == f"{expected}:{listener.getsockname()[1]}"


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ngrok.py").write_text("raise ImportError('no module named ngrok')")
    command = [sys.executable, "-m", "gateway.launcher", "--ngrok", "--port=0"]
    environment = FakeNgrok(tmp_path).environment | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (2, "error: --ngrok needs the package ngrok: pip install '.[ngrok]'\n")


@pytest.mark.slow
async def test_it_opens_when_the_engine_is_ready_and_closes_before_requests_are_refused(
    tmp_path: Path, ngrok: FakeNgrok
) -> None:
    write_model(tmp_path)
    flags = ("--ngrok", "--api-workers=2", "--graceful-termination-timeout=60")
    with running_launcher(tmp_path, *flags, held=True, env=ngrok.environment) as server:
        await asyncio.to_thread(server.wait_for_line, "engine: compiling 1/1")
        assert ngrok.calls == []
        server.hold.unlink()
        listening = await asked(ngrok, "listen")
        url = listening["public"]
        await asyncio.to_thread(server.wait_for_line, f"public address: {url}, forwarded to {server.url}")
        assert server.log.read_text().index("ready: ") < server.log.read_text().index("public address: ")
        assert listening == {"proto": "http", "to_url": server.url, "public": url}
        await asyncio.to_thread(server.wait_for, 200)
        async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as client:
            close = {"connection": "close"}
            for headers, status in ((KEY, 200), ({}, 401), ({"authorization": "Bearer wrong"}, 401)):
                answer = await client.post(url + "/generate", json=PROMPT, headers=headers | close)
                assert answer.status_code == status
            statuses = {path: (await client.get(url + path, headers=close)).status_code for path in KEYLESS + GUARDED}
            assert statuses == dict.fromkeys(KEYLESS, 200) | dict.fromkeys(GUARDED, 401)
            info = (await client.get(url + "/info", headers=KEY | close)).text
        assert "client=203.0.113.7" in server.log.read_text(), "who asked is not the tunnel's own end"
        nowhere(TOKEN, info, server.log.read_text(), server.process.pid)

        server.hold.touch()
        begun = asyncio.Event()
        running = asyncio.create_task(stream(url, begun))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for_line, "stopping: 1 requests are running")
        assert server.status("/health") == 503
        server.hold.unlink()
        assert await running == 3
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
    log = server.log.read_text()
    assert log.index("fake ngrok: close listener") < log.index("stopping: ") < log.index("fake ngrok: close session")
    assert [name for name, _ in ngrok.calls] == ["connect", "listen", "close listener", "close session"]
    assert TOKEN not in log


KEYLESS = ("/health", "/metrics")
GUARDED = ("/info", "/v1/models", "/docs", "/openapi.json", "/api/v1/model")


def nowhere(secret: str, info: str, log: str, launcher: int) -> None:
    """Fails if a secret of the launcher's environment is told, or known to another process."""
    assert secret not in info and secret not in log
    family = descendants(launcher)
    assert len(family) >= 2
    for pid in (launcher, *family):
        assert secret not in " ".join(arguments(pid))
    assert secret in Path(f"/proc/{launcher}/environ").read_text()
    for pid in family:
        assert secret not in Path(f"/proc/{pid}/environ").read_text(), arguments(pid)


async def stream(url: str, begun: asyncio.Event) -> int:
    """How many tokens a stream has, which ends without an error; the first one sets `begun`."""
    events = 0
    async with (
        httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as client,
        client.stream("POST", url + "/generate_stream", json=PROMPT, headers=KEY) as answer,
    ):
        async for line in answer.aiter_lines():
            if line:
                assert "error" not in line
                events += 1
                begun.set()
    return events
