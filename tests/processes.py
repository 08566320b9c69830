"""Real processes for tests: the mock engine alone, or the launcher in front of it. Nothing outlives its `with`."""

import asyncio
import errno
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.engine.client import EngineClient
from gateway.engine.interface import EngineUnavailable
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport

ROOT = Path(__file__).parent.parent
# For clients that are made by the dozen, or ask again and again: reading certificates costs each 20 ms of a core, and
# who has connected before the last is made may be cut, because its request's head does not come.
NO_CERTIFICATES = {"verify": False}
PATIENCE = 80.0  # seconds for what takes one on an idle machine: only a failure waits so long


def ask(prompt: list[int], new_tokens: int, **fields: Any) -> pb.Generate:
    """A request with every sampling option at rest."""
    neutral = pb.Sampling(top_p=1, typical_p=1, repetition_penalty=1)
    return pb.Generate(prompt=prompt, max_new_tokens=new_tokens, sampling=neutral, **fields)


async def collect(client: EngineClient, request: pb.Generate) -> tuple[list[int], pb.RequestEvent | EngineUnavailable]:
    """The ids a request brought, and how it ended."""
    ids: list[int] = []
    try:
        async for event in client.generate(request):
            ids += [token.id for token in event.tokens]
    except EngineUnavailable as error:
        return ids, error
    return ids, event


def start(module: str, *arguments: str, env: dict[str, str] | None = None, **popen: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
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
    """Wait for `condition()`; how long it took. Fails after `seconds`."""
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

    def engine_pid(self) -> int:
        """The engine's process id, the launcher's only child. Fails if there is none for `PATIENCE`."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + PATIENCE
        while not (text := children.read_text()):
            assert time.monotonic() < deadline, "the launcher has no engine"
            time.sleep(0.01)
        return int(text.split()[0])

    def status(self, path: str = "/health") -> int:
        """Of a GET; 0 if nobody listens."""
        try:
            return httpx.get(self.url + path, timeout=PATIENCE, **NO_CERTIFICATES).status_code
        except httpx.TransportError:
            return 0

    def wait_for(self, status: int, path: str = "/health", seconds: float = PATIENCE) -> float:
        began = time.monotonic()
        while self.status(path) != status:
            assert time.monotonic() - began < seconds, f"{path} never answered {status}: {self.log.read_text()}"
            time.sleep(0.02)
        return time.monotonic() - began


@dataclass
class MockLauncher(Launcher):
    """While the file `hold` exists, the engine's loading waits, and a request gets its first token and no more."""

    hold: Path

    def wait_for_line(self, text: str) -> None:
        """Until the log has it. Fails after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, f"{text!r} is not in {self.log.read_text()}"
            time.sleep(0.02)


@contextmanager
def running_launcher(
    directory: Path, *options: str, mock: tuple[str, ...] = (), held: bool = False
) -> Iterator[MockLauncher]:
    """The launcher on a port of its choice with the mock engine; `directory` holds a model's text files and its log."""
    log, hold = directory / "launcher.log", directory / "hold"
    if held:
        hold.touch()
    ours = ("--port=0", "--hostname=127.0.0.1", f"--shard-uds-path={directory}/s", *options)
    its = (f"--model-dir={directory}", f"--hold={hold}", *mock)
    with log.open("w") as stderr:
        process = start("tests.mock_launcher", *ours, "--", *its, stderr=stderr)
    try:
        yield MockLauncher(process, address(process, log), log, hold)
    finally:
        process.kill()
        process.wait()


def address(process: "subprocess.Popen[str]", log: Path) -> str:
    """The URL that a launcher says it listens on; empty if it ends without."""
    deadline = time.monotonic() + PATIENCE
    while not (found := re.search(r"listening on (http[^\s\"]+)", log.read_text())) and process.poll() is None:
        assert time.monotonic() < deadline, f"it does not listen: {log.read_text()}"
        time.sleep(0.01)
    return found[1] if found else ""


def is_busy() -> bool:
    """Whether more programs want to run than there are cores: then no time that was measured says anything."""
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
    """Whether nobody listens on the port of 127.0.0.1 any more within `seconds`.

    Not the same moment as `gone`: the other threads of a killed process hold its sockets a little longer.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED:
                return True
        time.sleep(0.01)
    return False
