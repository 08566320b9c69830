"""A leader and its followers in one process, on real sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jaxengine.group.distributed import free_port
from jaxengine.group.follower import FollowerLink
from jaxengine.group.leader import Leader
from jaxengine.group.membership import Membership

HELLO = {"version": "1", "jax": "0.10"}
SECONDS = 20.0  # for what takes milliseconds


def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition()`. Fails after `SECONDS`."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@dataclass
class Ends:
    """Notes what would end the process: reason and exit code. Its thread does nothing more."""

    noted: list[tuple[str, int]] = field(default_factory=list)
    happened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, reason: str, code: int) -> NoReturn:
        self.noted.append((reason, code))
        self.happened.set()
        while True:
            time.sleep(SECONDS)

    def wait(self) -> tuple[str, int]:
        """How the process ends. Fails after `SECONDS` without an end."""
        assert self.happened.wait(SECONDS), "it goes on"
        return self.noted[0]


@dataclass
class Group:
    """One group's settings, and what has become of its processes."""

    hosts: int = 2
    key: bytes = b"secret"
    patience: float = 30.0
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    progress: list[tuple[int, int]] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    leader_ends: Ends = field(default_factory=Ends)

    def member(self, rank: int, **other: Any) -> Membership:
        values = {"key": self.key, "patience": self.patience, "port": self.port, **other}
        return Membership(self.hosts, rank, "127.0.0.1", **values)

    def leader(self, **other: Any) -> Leader:
        return Leader(self.member(0, **other), HELLO, self.leader_ends)

    def follower(self, rank: int = 1, **other: Any) -> "tuple[FollowerLink, Ends]":
        ends = Ends()
        return FollowerLink(self.member(rank, **other), ends), ends

    @contextmanager
    def gathering(self, leader: Leader, welcome: dict[str, Any]) -> Iterator[threading.Thread]:
        """While the block runs the leader waits for its followers, which all have come when it ends."""
        thread = self.spawn(lambda: leader.gather(lambda: welcome, lambda *counts: self.progress.append(counts)))
        yield thread
        thread.join(SECONDS)
        assert not thread.is_alive(), "the group is not complete"

    def spawn(self, work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def met(group: Group) -> tuple[Leader, list[tuple[FollowerLink, Ends]]]:
    """A complete group."""
    leader, followers = group.leader(), [group.follower(rank) for rank in range(1, group.hosts)]
    with group.gathering(leader, {"port": 1}):
        joining = [group.spawn(lambda each=each: each.join(HELLO, lambda _: None)) for each, _ in followers]
    for each in joining:
        each.join(SECONDS)
    return leader, followers
