"""A model split over machines that are processes of this one: launchers with two CPU devices each, and a wire between
them on which things go wrong.
"""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jaxengine.group.distributed import free_port
from jaxengine.group.wire import BrokenLink, Frame, Kind, read_frame, written
from tests.processes import PATIENCE, Launcher, gone, start
from tests.servers import READY_SECONDS, Server, descendants, serving

HANG_SECONDS = 4.0
GRACE_SECONDS = 15.0
SIZES = ("--max-batch-size=4", "--max-batch-prefill-tokens=64", "--max-total-tokens=512", "--num-shard=2")
CPU_DEVICES = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}

Change = Callable[[Frame], bytes | None]


class Wire:
    """Takes what followers send to the leader and back. `change` makes other bytes of a frame from the leader, or none.

    Once it is changed, the wire is whole again.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.change: Change = written
        self.delay = 0.0  # seconds, of each frame of the leader's
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def break_once(self, kind: Kind, broken: Change) -> threading.Event:
        """The next frame of `kind` becomes what `broken` makes of it; the event is set then."""
        done = threading.Event()

        def change(frame: Frame) -> bytes | None:
            if frame.kind is not kind or done.is_set():
                return written(frame)
            done.set()
            return broken(frame)

        self.change = change
        return done

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            try:
                theirs = socket.create_connection(("127.0.0.1", self._leader))
            except OSError:
                ours.close()
                continue
            threading.Thread(target=self._to_leader, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self._from_leader, args=(theirs, ours), daemon=True).start()

    def _to_leader(self, follower: socket.socket, leader: socket.socket) -> None:
        _pass_on(lambda: follower.recv(1 << 16), follower, leader)

    def _from_leader(self, leader: socket.socket, follower: socket.socket) -> None:
        def receive() -> bytes:
            while True:
                frame = read_frame(leader)
                time.sleep(self.delay)
                if (changed := self.change(frame)) is not None:
                    return changed

        _pass_on(receive, leader, follower)


def _pass_on(receive: Callable[[], bytes], source: socket.socket, target: socket.socket) -> None:
    try:
        while data := receive():
            target.sendall(data)
    except (OSError, BrokenLink):
        pass
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@dataclass
class Group:
    """The launchers of all machines, the leading one first."""

    leader: Server
    followers: list[Launcher]
    wire: Wire
    ready: int = 0  # how often the leader was
    marks: dict[Path, int] = field(default_factory=dict)  # how much of each log is old

    def wait_ready(self) -> float:
        """Wait until the group is complete and serves, anew since it was waited for last; the seconds it took."""
        began = time.monotonic()
        while (found := self.leader.log.read_text().count(" ready: ")) <= self.ready:
            assert self.leader.process.poll() is None, self.logs()
            assert time.monotonic() - began < READY_SECONDS, self.logs()
            time.sleep(0.05)
        self.ready = found
        self.leader.wait_ready()
        return time.monotonic() - began

    def mark(self) -> None:
        """What the logs say by now is old."""
        self.marks = {each.log: len(each.log.read_text()) for each in [self.leader, *self.followers]}

    def logs(self) -> str:
        """All lines that are not old."""
        logs = [each.log for each in [self.leader, *self.followers]]
        return "\n\n".join(log.read_text()[self.marks.get(log, 0) :] for log in logs)

    def wait_for_line(self, pattern: str) -> float:
        """Wait for such a line in any log, one that is not old; the seconds it took."""
        began = time.monotonic()
        while not re.search(pattern, self.logs()):
            assert time.monotonic() - began < PATIENCE, f"no line like {pattern!r} in {self.logs()}"
            time.sleep(0.02)
        return time.monotonic() - began


@contextmanager
def serving_group(directory: Path, hosts: int, *options: str, env: dict[str, str] | None = None) -> Iterator[Group]:
    """A group on loopback, with a wire to its followers. At the end all its processes must be gone."""
    key, port = directory / "key", free_port("127.0.0.1")
    key.write_text("shared by all\n")
    wire = Wire(port)
    shared = (*SIZES, f"--nnodes={hosts}", "--master-addr=127.0.0.1", f"--group-key-file={key}", *options)
    shared = (*shared, f"--engine-hang-timeout={HANG_SECONDS}", f"--graceful-termination-timeout={GRACE_SECONDS:g}")
    environment = {**CPU_DEVICES, **(env or {})}
    with ExitStack() as stack:
        stack.callback(wire.close)
        followers = [
            stack.enter_context(following(directory / str(rank), rank, wire.port, shared, environment))
            for rank in range(1, hosts)
        ]
        flags = (*shared, "--node-rank=0", f"--master-port={port}")
        leader = stack.enter_context(serving(directory, *flags, env=environment))
        yield Group(leader, followers, wire)


@contextmanager
def following(
    directory: Path, rank: int, port: int, options: tuple[str, ...], env: dict[str, str]
) -> Iterator[Launcher]:
    """The launcher of a machine that follows."""
    directory.mkdir()
    log = directory / "follower.log"
    flags = (f"--node-rank={rank}", f"--master-port={port}", f"--shard-uds-path={directory}/uds", *options)
    with log.open("w") as stderr:
        process = start("gateway.launcher", *flags, env=env, stdout=stderr, stderr=stderr)
    try:
        yield Launcher(process, "", log)
        if process.poll() is None:
            assert stopped(process) == 0, log.read_text()
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            if not gone(pid, 0.01):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def stopped(process: "subprocess.Popen[str]") -> int:
    """Send SIGTERM and wait; the exit code."""
    family = [process.pid, *descendants(process.pid)]
    process.send_signal(signal.SIGTERM)
    code = process.wait(PATIENCE)
    assert all(gone(pid) for pid in family), "a process is left over"
    return code
