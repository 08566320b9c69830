"""The side of a process that follows: it finds the leader, agrees with it, and is told every launch."""

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from jaxengine.group.link import Link, WrongKey, enter
from jaxengine.group.membership import FAREWELL_SECONDS, Leave, Membership, leave
from jaxengine.group.pulse import keep_pulse
from jaxengine.group.wire import Frame, Kind
from jaxengine.options.group import GROUP_ENDED
from jaxengine.rpc.progress import WAITING

logger = logging.getLogger(__name__)

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
        self._ending = threading.Lock()
        self.repeated = 0  # the last launch

    def join(self, hello: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
        """Find the leader, however long that takes, and wait until the group is complete; its welcome."""
        said = {**hello, "rank": self._membership.rank}
        progress(f"{WAITING} machine 0 at {self._membership.address} port {self._membership.port}")
        while self._link is None:
            self._link = self._connected(said)
        threading.Thread(target=self._receive, args=(self._link,), name="receive", daemon=True).start()
        keep_pulse(lambda: {0: self._the_link}, self._membership.patience, lambda: self.repeated, self._silent)
        progress(f"{WAITING} the other machines")
        return self._expect(Kind.WELCOME)

    def _connected(self, said: Mapping[str, Any]) -> Link | None:
        """The link, if there is a leader. Whoever else listens there now does not keep it from being found later."""
        address, port = self._membership.address, self._membership.port
        try:
            connection = socket.create_connection((address, port), timeout=RETRY_SECONDS)
        except OSError:
            time.sleep(RETRY_SECONDS)
            return None
        try:
            enter(connection, self._membership.key, said)
            return Link(connection)
        except WrongKey:
            logger.error("who listens at %s port %d has another key than --group-key-file", address, port)
        except OSError as error:
            logger.warning("who listens at %s port %d is no machine 0: %s", address, port, error)
        connection.close()
        time.sleep(RETRY_SECONDS)
        return None

    def agree(self, facts: Mapping[str, Any], memory: int) -> dict[str, Any]:
        """Tell the leader what was decided here, and how many bytes a device has; what will run."""
        self._the_link.tell(Kind.FACTS, facts, memory)
        return self._expect(Kind.PLAN)

    def tell_built(self, index: int) -> None:
        """From any thread: the executable of this index can be launched."""
        self._the_link.send(Kind.BUILT, number=index)

    def next_frame(self, timeout: float) -> Frame | None:
        """What the leader tells next; None if it tells nothing for `timeout` seconds."""
        try:
            return self._frames.get(timeout=timeout)
        except queue.Empty:
            return None

    def fail(self, reason: str) -> None:
        """Tell the leader why this process is about to end."""
        self._the_link.send(Kind.ENDED, reason.encode(), os.EX_SOFTWARE)
        self._the_link.flush(FAREWELL_SECONDS)

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
        except Exception as error:  # of memory too: whatever it is, nothing is received any more
            self._end(f"machine 0 has left: {error}", GROUP_ENDED)

    def _silent(self, _: int, link: Link) -> None:
        self._end(f"machine 0 has shown no life for {link.silence:.1f} s", GROUP_ENDED)

    def _end(self, reason: str, code: int) -> NoReturn:
        if self._ending.acquire(blocking=False):
            self.fail(reason)
            self._leave(reason, code)
        while True:  # another thread ends this process, and says why: what it said may have closed the connection
            time.sleep(FAREWELL_SECONDS)
