"""A connection between two processes of a group, from the moment when each knows that the other has the key.

Leader and follower prove that they have it without telling it: each answers the other's random bytes (HMAC-SHA256, RFC
2104). What follows is neither secret nor signed. JAX's own connections, and NCCL's, are open too: a group belongs in a
private network.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from jaxengine.group.wire import LONGEST_FRAME, BrokenLink, Frame, Kind, read_frame, written

HANDSHAKE_SECONDS = 10.0
LONGEST_HELLO = 1 << 16  # bytes


class WrongKey(Exception):
    """The other process does not have the key of this one."""


class Link:
    """Frames to and from one process. Any thread may send, and never waits; one receives.

    heard: when anything came last, in seconds of the monotonic clock.
    """

    def __init__(self, connection: socket.socket, longest: int = LONGEST_FRAME) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._longest = connection, longest
        self._waiting: deque[bytes] = deque()  # what the other process has not taken yet
        self._changed = threading.Condition()
        self._broken = False
        self.heard = time.monotonic()
        threading.Thread(target=self._send_waiting, name="send", daemon=True).start()

    @property
    def silence(self) -> float:
        """Seconds since anything came."""
        return time.monotonic() - self.heard

    def send(self, kind: Kind, payload: bytes = b"", number: int = 0) -> None:
        """Send a frame, at once if the other process takes it, else behind this call. Whoever receives notices if it is
        gone.
        """
        data = written(Frame(kind, number, payload))
        with self._changed:
            if not self._waiting and not self._broken:
                data = data[self._sent(data) :]
            if data:
                self._waiting.append(data)
                self._changed.notify_all()

    def _sent(self, data: bytes) -> int:
        """How many bytes of `data` go without waiting."""
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True
            return 0

    def _send_waiting(self) -> None:
        while not self._broken:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._broken)
                data = self._waiting[0] if self._waiting else b""
            try:
                self._connection.sendall(data)
            except OSError:
                self._broken = True
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                self._changed.notify_all()

    def tell(self, kind: Kind, values: Mapping[str, Any], number: int = 0) -> None:
        """Send `values` as JSON."""
        self.send(kind, json.dumps(values).encode(), number)

    def flush(self, timeout: float) -> None:
        """Wait until the other process has taken all, or is gone, or `timeout` seconds are over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._broken, timeout)

    def receive(self) -> Frame:
        """The next frame. Raises BrokenLink."""
        return read_frame(self._connection, self._longest, self._note_life)

    def _note_life(self) -> None:
        self.heard = time.monotonic()

    def close(self) -> None:
        """What is being sent or received ends too."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # it is closed already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def let_in(connection: socket.socket, key: bytes) -> dict[str, Any]:
    """As the leader: what the process that has connected says of itself.

    Raises:
        WrongKey: it does not have the key.
        BrokenLink: it says something else, or nothing, or too slowly.
    """
    in_time = _deadline(connection)
    ours = secrets.token_bytes(32)
    _send(connection, Frame(Kind.CHALLENGE, payload=ours))
    values = _expect(connection, Kind.HELLO, in_time).values
    try:
        theirs, proof = bytes.fromhex(values["challenge"]), bytes.fromhex(values["proof"])
        said = dict(values["hello"])
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenLink("its HELLO is incomplete") from error
    if not hmac.compare_digest(proof, _proof(key, "follower", ours, theirs, said)):
        raise WrongKey
    _send(connection, Frame(Kind.CHALLENGE, payload=_proof(key, "leader", theirs, ours, said)))
    return said


def enter(connection: socket.socket, key: bytes, hello: Mapping[str, Any]) -> None:
    """As a follower: say `hello` to the leader.

    Raises:
        WrongKey: it does not have the key.
        BrokenLink: it says something else, or nothing, or too slowly.
    """
    in_time = _deadline(connection)
    theirs, ours = _expect(connection, Kind.CHALLENGE, in_time).payload, secrets.token_bytes(32)
    proof = _proof(key, "follower", theirs, ours, hello)
    values = {"hello": hello, "challenge": ours.hex(), "proof": proof.hex()}
    _send(connection, Frame(Kind.HELLO, payload=json.dumps(values).encode()))
    answer = read_frame(connection, LONGEST_HELLO, in_time)
    if not hmac.compare_digest(answer.payload, _proof(key, "leader", ours, theirs, hello)):
        raise WrongKey


def _proof(key: bytes, role: str, challenge: bytes, own: bytes, hello: Mapping[str, Any]) -> bytes:
    said = json.dumps(hello, sort_keys=True).encode()
    return hmac.new(key, role.encode() + challenge + own + said, hashlib.sha256).digest()


def _deadline(connection: socket.socket) -> Callable[[], None]:
    """What raises BrokenLink once a handshake that begins now has taken too long. No wait is longer either."""
    connection.settimeout(HANDSHAKE_SECONDS)
    end = time.monotonic() + HANDSHAKE_SECONDS

    def check() -> None:
        if time.monotonic() > end:
            raise BrokenLink("the handshake takes too long")

    return check


def _expect(connection: socket.socket, kind: Kind, in_time: Callable[[], None]) -> Frame:
    frame = read_frame(connection, LONGEST_HELLO, in_time)
    if frame.kind is not kind:
        raise BrokenLink(f"a {frame.kind.name} in place of a {kind.name}")
    return frame


def _send(connection: socket.socket, frame: Frame) -> None:
    try:
        connection.sendall(written(frame))
    except OSError as error:
        raise BrokenLink(f"the connection has failed: {error.strerror}") from error
