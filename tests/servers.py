"""Whole servers for tests: the launcher, its engine and a real model. None outlives its `with` block."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import PATIENCE, Launcher, children, gone, listening_url, start

READY_SECONDS = 240.0  # the very first start fetches and converts the default model, and compiles


@dataclass
class Server(Launcher):
    """A launcher with a real engine."""

    uds_prefix: str = ""

    def wait_ready(self, seconds: float = READY_SECONDS) -> float:
        """Wait until the server is ready; the seconds it took. Fails at once if the server ends."""
        began = time.monotonic()
        while self.status() != 200:
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()}"
            assert time.monotonic() - began < seconds, f"not ready within {seconds} s: {self.log.read_text()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def kill_engine(self) -> None:
        """Kill the engine, and wait until another is ready. The gateway may hear of the end a moment after us."""
        begun = self._starts()
        os.kill(engine := self.engine_pid(), signal.SIGKILL)
        assert gone(engine)
        deadline = time.monotonic() + READY_SECONDS
        while self._starts() == begun:
            assert time.monotonic() < deadline, f"no other engine is ready: {self.log.read_text()}"
            time.sleep(0.05)

    def _starts(self) -> int:
        """How many engines have been ready, by the log."""
        return self.log.read_text().count(" ready: ")

    def stop(self) -> None:
        """Send SIGTERM. Fails unless the exit code is 0 and no process or directory is left."""
        family = [self.process.pid, *descendants(self.process.pid)]
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert code == 0, f"exit code {code}: {self.log.read_text()}"
        self.assert_gone(family)

    def assert_gone(self, family: list[int]) -> None:
        assert all(gone(pid) for pid in family), "a process is left over"
        directory = Path(f"{self.uds_prefix}-{self.url.rpartition(':')[2]}")
        assert not directory.exists(), f"{directory} is left over"


@contextmanager
def serving(directory: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """The launcher on a free loopback port, with its log in `directory`. At the end all its processes must be gone."""
    prefix, log = f"{directory}/uds", directory / "server.log"
    flags = ("--port=0", "--hostname=127.0.0.1", f"--shard-uds-path={prefix}", *options)
    with log.open("w") as stderr:
        process = start("gateway.launcher", *flags, env=env, stdout=stderr, stderr=stderr)
    try:
        yield (server := Server(process, listening_url(process, log), log, prefix))
        if process.poll() is None:
            server.stop()
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            if not gone(pid, 0.01):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    direct = children(pid)
    return direct + [below for child in direct for below in descendants(child)]


def arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
