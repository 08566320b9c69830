"""The process that leads a group: the whole engine, which tells the others every launch.

A launch is told before it happens here, so its way to the others takes the time of the step before. The others decide
nothing: they have no scheduler, no random numbers and no clock. What they have sampled is compared with what was
sampled here, some steps later.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from jaxengine.executor.device_state import Arrays
from jaxengine.group.distributed import family_of
from jaxengine.group.link import Link, WrongKey, let_in
from jaxengine.group.membership import FAREWELL_SECONDS, Leave, Membership, leave
from jaxengine.group.pulse import keep_pulse
from jaxengine.group.wire import LONGEST_ANSWER, BrokenLink, Frame, Kind, packed_arrays, packed_launch
from jaxengine.options.group import GROUP_ENDED
from jaxengine.telemetry.logs import USAGE

logger = logging.getLogger(__name__)

ACCEPT_SECONDS = 0.5  # between looks whether the group is complete
HANDSHAKES = 64  # at once; a further connection is closed


@dataclass(eq=False)
class Follower:
    """Another process of the group, as the leader knows it."""

    link: Link
    address: str
    facts: dict[str, Any] | None = None
    memory: int = 0  # bytes of each of its devices
    built: set[int] = field(default_factory=set)  # indices of executables
    repeated: int = 0  # the last launch that it has told to have repeated


class Leader:
    """A `Followers` for the engine of this process.

    Args:
        hello: what every process of the group must say of itself, but for its rank.
        left: ends this process.
    """

    def __init__(self, membership: Membership, hello: Mapping[str, Any], left: Leave = leave) -> None:
        self._membership, self._hello, self._leave = membership, dict(hello), left
        self._followers: dict[int, Follower] = {}
        self._complete = False
        self._changed = threading.Condition()
        self._ending = threading.Lock()
        self._index: dict[Hashable, int] = {}
        self._told = 0
        self._handshakes = threading.BoundedSemaphore(HANDSHAKES)
        keep_pulse(self._links, membership.patience, lambda: self._told, self._silent)

    def _links(self) -> dict[int, Link]:
        return {rank: each.link for rank, each in self._followers.copy().items()}

    # --- meeting ------------------------------------------------------------------------------------------------

    def gather(self, welcome: Callable[[], Mapping[str, Any]], progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Wait until all followers are here, and tell them `welcome()`, which is returned. `progress(here, wanted)` is
        told of each.

        Raises:
            ValueError: this machine does not have the address on which the others look for it.
        """
        wanted = self._membership.hosts - 1
        with self._listener() as listener:
            accepting = threading.Thread(target=self._accept, args=(listener,), name="join", daemon=True)
            with self._changed:  # before anyone is let in: `progress` is told of each
                accepting.start()
                while len(self._followers) < wanted:
                    progress(len(self._followers), wanted)
                    self._changed.wait()
                self._complete = True
            accepting.join()
        told = dict(welcome())
        for each in self._followers.values():
            each.link.tell(Kind.WELCOME, told)
        return told

    def _listener(self) -> socket.socket:
        address, port = self._membership.address, self._membership.port
        try:
            listener = socket.create_server((address, port), family=family_of(address))
        except OSError as error:
            problem = error.strerror or str(error)
            raise ValueError(f"cannot listen on --master-addr {address} port {port}: {problem}") from None
        listener.settimeout(ACCEPT_SECONDS)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while not self._complete:
            try:
                connection, address = listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # of too many open files, say
                logger.warning("a connection could not be taken: %s", error)
                time.sleep(ACCEPT_SECONDS)
                continue
            if not self._handshakes.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._admit, args=(connection, address[0]), name="admit", daemon=True).start()

    def _admit(self, connection: socket.socket, address: str) -> None:
        follower = None
        try:
            follower = self._admitted(connection, address)
        except BrokenLink as error:
            logger.warning("%s connected as no follower does: %s", address, error)
        finally:
            self._handshakes.release()
            if follower is None:
                connection.close()
        if follower is not None:
            self._receive(*follower)

    def _admitted(self, connection: socket.socket, address: str) -> "tuple[int, Follower] | None":
        """Who has connected, by its rank, if it belongs here."""
        try:
            hello = let_in(connection, self._membership.key)
        except WrongKey:
            logger.warning("%s was not let in: it has another key than --group-key-file", address)
            return None
        link, rank = Link(connection, LONGEST_ANSWER), hello.pop("rank", None)
        if differences := differing(self._hello, hello):
            self._refuse(link, address, f"it differs from machine 0: {differences}", USAGE)
            return None
        if rank not in range(1, self._membership.hosts):
            self._refuse(link, address, f"--node-rank {rank} is none of this group", USAGE)
            return None
        with self._changed:
            if not self._complete and rank not in self._followers:
                self._followers[rank] = follower = Follower(link, address)
                self._changed.notify_all()
                logger.info("machine %d has joined, from %s", rank, address)
                return rank, follower
            other = self._followers[rank].address
        self._refuse(link, address, f"machine {rank} is here already, from {other}", GROUP_ENDED)
        return None

    def _refuse(self, link: Link, address: str, reason: str, code: int) -> None:
        """Tell whoever has connected why it is not let in, and with which code it should exit."""
        logger.warning("%s was not let in: %s", address, reason)
        link.send(Kind.ENDED, reason.encode(), code)
        link.flush(FAREWELL_SECONDS)
        link.close()

    # --- agreeing -----------------------------------------------------------------------------------------------

    def agree(self, facts: Mapping[str, Any], memory: int) -> int:
        """Wait for what the followers have decided, which must be `facts`; the bytes that the device with the least
        memory has, where one of this process has `memory`.
        """
        self._wait(lambda: all(each.facts for each in self._followers.values()))
        for rank, each in sorted(self._followers.items()):
            if differences := differing(facts, each.facts or {}):
                self._end(f"machine {rank} differs from machine 0: {differences}", wrong=rank)
        return min(memory, *(each.memory for each in self._followers.values()))

    def plan(self, plan: Mapping[str, Any]) -> None:
        """Tell the followers what will run."""
        for each in self._followers.values():
            each.link.tell(Kind.PLAN, plan)

    def number(self, names: Sequence[Hashable]) -> None:
        """Number the executables of this engine: the followers have the same, in the same order."""
        self._index = {name: index for index, name in enumerate(names)}

    def await_built(self, names: Sequence[Hashable]) -> None:
        """Wait until all followers have the executables `names`."""
        wanted = {self._index[name] for name in names}
        self._wait(lambda: all(wanted <= each.built for each in self._followers.values()))

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(condition)

    # --- launching ----------------------------------------------------------------------------------------------

    def has_built(self, name: Hashable) -> bool:
        """Whether all followers have executable `name`."""
        index = self._index[name]
        return all(index in each.built for each in self._followers.values())

    def tell(self, number: int, name: Hashable, arrays: Arrays) -> None:
        """Have all followers launch executable `name` with `arrays`, as launch `number`."""
        self._told = number
        self._send(Kind.LAUNCH, packed_launch(self._index[name], arrays), number)

    def compare(self, number: int, sampled: np.ndarray) -> None:
        """Have all followers compare the ids that launch `number` has sampled, the first column of `sampled`."""
        self._send(Kind.SAMPLED, packed_arrays([sampled[:, 0]]), number)

    def _send(self, kind: Kind, payload: bytes, number: int) -> None:
        for each in self._followers.values():
            each.link.send(kind, payload, number)

    # --- watching -----------------------------------------------------------------------------------------------

    def _receive(self, rank: int, follower: Follower) -> None:
        try:
            while True:
                self._note(rank, follower, follower.link.receive())
        except Exception as error:  # of memory too: whatever it is, nothing is received any more
            follower.link.close()
            self._gone(rank, str(error))

    def _note(self, rank: int, follower: Follower, frame: Frame) -> None:
        match frame.kind:
            case Kind.BEAT:
                follower.repeated = frame.number
            case Kind.ENDED:
                raise BrokenLink(frame.text)
            case Kind.FACTS:
                follower.memory, follower.facts = frame.number, frame.values
            case Kind.BUILT:
                follower.built.add(frame.number)
            case _:
                raise BrokenLink(f"it sends a {frame.kind.name}, which is for the leader to send")
        with self._changed:
            self._changed.notify_all()

    def _gone(self, rank: int, reason: str) -> None:
        with self._changed:
            if not self._complete:  # it may come back
                del self._followers[rank]
                logger.warning("machine %d has left: %s", rank, reason)
                self._changed.notify_all()
                return
        self._end(f"machine {rank} has left the group: {reason}")

    def _silent(self, rank: int, link: Link) -> None:
        if not self._complete:
            link.close()  # whoever receives from it notices
            return
        behind = self._told - self._followers[rank].repeated
        self._end(f"machine {rank} has shown no life for {link.silence:.1f} s; it is {behind} launches behind")

    def _end(self, reason: str, wrong: int | None = None) -> NoReturn:
        """Tell everyone who still listens, and leave. The machine `wrong` need not come back as it is."""
        if self._ending.acquire(blocking=False):
            for rank, each in self._followers.items():
                each.link.send(Kind.ENDED, reason.encode(), USAGE if rank == wrong else GROUP_ENDED)
            for each in self._followers.values():
                each.link.flush(FAREWELL_SECONDS)
            self._leave(reason, os.EX_SOFTWARE)
        while True:  # another thread ends this process, and says why
            time.sleep(FAREWELL_SECONDS)


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """In which facts two processes differ, for the operator; empty if in none."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} is {theirs.get(name)} there and {ours.get(name)} here" for name in names)
