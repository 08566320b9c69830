"""Real processes for tests: the mock engine alone, or the launcher in front of it. None outlives its `with` block."""

import asyncio
import errno
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from gateway.engine.client import EngineClient
from gateway.engine.interface import EngineUnavailable
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from tests.gateway.toys import write_model

ROOT = Path(__file__).parent.parent
# For clients that are made by the dozen, or that ask again and again. Reading certificates costs each client 20 ms of a
# core, and a client that connects before the last one is made may be disconnected, because its request's head is late.
NO_CERTIFICATES = {"verify": False}
PATIENCE = 80.0  # seconds for what takes one second on an idle machine: only a failure waits so long


def ask(prompt: list[int], new_tokens: int, **fields: Any) -> pb.Generate:
    """A request with neutral sampling options."""
    neutral = pb.Sampling(top_p=1, typical_p=1, repetition_penalty=1)
    return pb.Generate(prompt=prompt, max_new_tokens=new_tokens, sampling=neutral, **fields)


class Generates(Protocol):
    """What answers requests: `EngineClient` or `Replicas`."""

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]: ...


async def collect(client: Generates, request: pb.Generate) -> tuple[list[int], pb.RequestEvent | EngineUnavailable]:
    """The token ids of a request's events, and how the request ended."""
    ids: list[int] = []
    try:
        async for event in client.generate(request):
            ids += [token.id for token in event.tokens]
    except EngineUnavailable as error:
        return ids, error
    return ids, event


def start(module: str, *arguments: str, env: dict[str, str] | None = None, **popen: Any) -> "subprocess.Popen[str]":
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, **(env or {})}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, cwd=ROOT, text=True, **popen)


@dataclass
class Engine:
    process: "subprocess.Popen[str]"
    path: Path
    token: str


@contextmanager
def running_engine(directory: Path, *flags: str, token: str | None = None) -> Iterator[Engine]:
    """The mock engine as a process; its stderr is captured."""
    path = directory / "private" / "engine.sock"
    token = transport.new_token() if token is None else token
    env = {transport.TOKEN_VARIABLE: token}
    process = start("tests.engine_mock", f"--uds-path={path}", *flags, env=env, stderr=subprocess.PIPE)
    try:
        yield Engine(process, path, token)
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def connected(engine: Engine, **options: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.path, engine.token, **options)
    running = asyncio.create_task(client.run())
    try:
        await until(lambda: client.ready)
        yield client
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def until(condition: Any, seconds: float = PATIENCE) -> float:
    """Wait for `condition()`; the seconds it took. Fails after `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "waited in vain"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


@dataclass
class Launcher:
    process: "subprocess.Popen[str]"
    url: str
    log: Path

    def engine_pid(self, number: int | None = None) -> int:
        """The process id of an engine: the only one, or that of a replica. Fails after `PATIENCE` without one."""
        socket = "engine.sock" if number is None else f"engine-{number}.sock"
        deadline = time.monotonic() + PATIENCE
        while not (found := [pid for pid in children(self.process.pid) if f"/{socket}\0" in command_line(pid)]):
            assert time.monotonic() < deadline, "the launcher has no such engine"
            time.sleep(0.01)
        return found[0]

    @property
    def admin_url(self) -> str:
        """The URL of the admin listener, which the launcher has logged."""
        return logged_url(self.process, self.log, "probes and metrics on")

    def status(self, path: str = "/health") -> int:
        """The status of a GET; 0 if nothing listens."""
        try:
            return httpx.get(self.url + path, timeout=PATIENCE, **NO_CERTIFICATES).status_code
        except httpx.TransportError:
            return 0

    def gauges(self) -> dict[str, float]:
        return gauges(self.url)

    def wait_for(self, status: int, path: str = "/health", seconds: float = PATIENCE) -> float:
        began = time.monotonic()
        while self.status(path) != status:
            assert time.monotonic() - began < seconds, f"{path} never answered {status}: {self.log.read_text()}"
            time.sleep(0.02)
        return time.monotonic() - began


@dataclass
class MockLauncher(Launcher):
    """A launcher whose mock engine pauses while the file `hold` exists: when it loads, and after each first token."""

    hold: Path

    def wait_for_line(self, text: str) -> None:
        """Wait until the log holds `text`. Fails after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, f"{text!r} is not in {self.log.read_text()}"
            time.sleep(0.02)


@contextmanager
def running_launcher(
    directory: Path,
    *options: str,
    mock: tuple[str, ...] = (),
    held: bool = False,
    env: dict[str, str] | None = None,
) -> Iterator[MockLauncher]:
    """The launcher with the mock engine, on a free port; `directory` holds a model's text files and gets the log."""
    log, hold = directory / "launcher.log", directory / "hold"
    if held:
        hold.touch()
    ours = ("--port=0", "--hostname=127.0.0.1", f"--shard-uds-path={directory}/s", *options)
    its = (f"--model-dir={directory}", f"--hold={hold}", *mock)
    with log.open("w") as stderr:
        process = start("tests.mock_launcher", *ours, "--", *its, env=env, stderr=stderr)
    try:
        yield MockLauncher(process, listening_url(process, log), log, hold)
    finally:
        process.kill()
        process.wait()


@contextmanager
def two_replicas(directory: Path) -> Iterator[MockLauncher]:
    """Two HTTP processes in front of two mock engines of the toy model, ready, with steps of 3 ms."""
    mock = ("--step-seconds=0.003",)
    with running_launcher(write_model(directory), "--replicas=2", "--api-workers=2", mock=mock) as server:
        server.wait_for(200)
        yield server


def gauges(url: str) -> dict[str, float]:
    """Every sample of /metrics by its name and labels, as written there."""
    lines = httpx.get(url + "/metrics", timeout=PATIENCE, **NO_CERTIFICATES).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def children(pid: int) -> list[int]:
    """The children of all threads of a process; none if it has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended
    return found


def command_line(pid: int) -> str:
    """The arguments of a process, each ended by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def listening_url(process: "subprocess.Popen[str]", log: Path) -> str:
    """The URL on which a launcher logs that it listens; empty if it ends before."""
    return logged_url(process, log, "listening on")


def logged_url(process: "subprocess.Popen[str]", log: Path, words: str) -> str:
    """The URL that a launcher logs after `words`; empty if it ends before. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not (found := re.search(rf"{words} (http[^\s\"]+)", log.read_text())) and process.poll() is None:
        assert time.monotonic() < deadline, f"it does not log {words!r}: {log.read_text()}"
        time.sleep(0.01)
    return found[1] if found else ""


def is_busy() -> bool:
    """Whether more programs want to run than there are cores: then a measured time means nothing."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) + 1


def gone(pid: int, seconds: float = PATIENCE) -> bool:
    """Whether the process has ended within `seconds`, zombies counting as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def closed(port: int, seconds: float = PATIENCE) -> bool:
    """Whether nothing listens on the port of 127.0.0.1 any more, within `seconds`.

    This comes later than `gone`: the other threads of a killed process hold its sockets a little longer.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED:
                return True
        time.sleep(0.01)
    return False
