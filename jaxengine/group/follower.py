"""The side of a process that follows: it finds the leader, agrees with it, and is told every launch."""

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from jaxengine.group.leader import INDEX
from jaxengine.group.link import Link, WrongKey, enter
from jaxengine.group.membership import Leave, Membership, leave
from jaxengine.group.pulse import Pulse
from jaxengine.group.wire import BrokenLink, Frame, Kind
from jaxengine.options.group import GROUP_ENDED
from jaxengine.telemetry.logs import USAGE

RETRY_SECONDS = 1.0


class FollowerLink:
    """The connection to the leader.

    Args:
        left: ends this process.
    """

    def __init__(self, membership: Membership, left: Leave = leave) -> None:
        self._membership, self._leave = membership, left
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._link: Link | None = None
        self.repeated = 0  # the last launch

    def join(self, hello: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
        """Find the leader, however long that takes, and wait until the group is complete; its welcome."""
        address, port = self._membership.address, self._membership.port
        said = {**hello, "rank": self._membership.rank}
        while self._link is None:
            progress(f"looking for machine 0 at {address} port {port}")
            try:
                connection = socket.create_connection((address, port), timeout=RETRY_SECONDS)
                enter(connection, self._membership.key, said)
                self._link = Link(connection)
            except WrongKey:
                self._leave("machine 0 has another key in its --group-key-file", USAGE)
            except OSError:  # BrokenLink is one
                time.sleep(RETRY_SECONDS)
        threading.Thread(target=self._receive, args=(self._link,), name="receive", daemon=True).start()
        Pulse(lambda: {0: self._the_link}, self._membership.patience, lambda: self.repeated, self._silent).start()
        progress("waiting for the other machines")
        return self._expect(Kind.WELCOME)

    def agree(self, facts: Mapping[str, Any], memory: int) -> dict[str, Any]:
        """Tell the leader what was decided here, and how many bytes a device has; what will run."""
        self._the_link.tell(Kind.FACTS, facts, memory)
        return self._expect(Kind.PLAN)

    def tell_built(self, index: int) -> None:
        """From any thread: the executable of this index can be launched."""
        with contextlib.suppress(BrokenLink):  # whoever receives notices
            self._the_link.send(Kind.BUILT, number=index)

    def next_frame(self, timeout: float) -> Frame | None:
        """What the leader tells next; None if it tells nothing for `timeout` seconds."""
        try:
            return self._frames.get(timeout=timeout)
        except queue.Empty:
            return None

    def fail(self, reason: str) -> None:
        """Tell the leader why this process is about to end."""
        with contextlib.suppress(BrokenLink):
            self._the_link.send(Kind.ENDED, reason.encode(), os.EX_SOFTWARE)

    @property
    def _the_link(self) -> Link:
        assert self._link is not None
        return self._link

    def _expect(self, kind: Kind) -> dict[str, Any]:
        frame = self._frames.get()
        if frame.kind is not kind:
            self._end(f"machine 0 sent a {frame.kind.name} in place of a {kind.name}", os.EX_SOFTWARE)
        return frame.values

    def _receive(self, link: Link) -> None:
        try:
            while True:
                frame = link.receive()
                if frame.kind is Kind.ENDED:
                    self._end(f"machine 0 has ended the group: {frame.text}", frame.number or GROUP_ENDED)
                if frame.kind is not Kind.BEAT:
                    self._frames.put(frame)
        except BrokenLink as error:
            self._end(f"machine 0 has left: {error}", GROUP_ENDED)

    def _silent(self, _: int, link: Link) -> None:
        self._end(f"machine 0 has shown no life for {link.silence:.1f} s", GROUP_ENDED)

    def _end(self, reason: str, code: int) -> NoReturn:
        self.fail(reason)
        self._leave(reason, code)


def index_of(frame: Frame) -> int:
    """Of the executable of a LAUNCH. Raises BrokenLink."""
    try:
        (index,) = INDEX.unpack_from(frame.payload)
    except struct.error as error:
        raise BrokenLink("a LAUNCH without an index") from error
    return int(index)
