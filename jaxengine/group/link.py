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
from collections.abc import Mapping
from typing import Any

from jaxengine.group.wire import BrokenLink, Frame, Kind, read_frame, written

HANDSHAKE_SECONDS = 10.0
LONGEST_HELLO = 1 << 16  # bytes


class WrongKey(Exception):
    """The other process does not have the key of this one."""


class Link:
    """Frames to and from one process. Any thread may send, one receives.

    heard: when anything came last, in seconds of the monotonic clock.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()
        self.heard = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since anything came."""
        return time.monotonic() - self.heard

    def send(self, kind: Kind, payload: bytes = b"", number: int = 0) -> None:
        """Raises BrokenLink. Waits while the other process takes nothing."""
        try:
            with self._sending:
                self._connection.sendall(written(Frame(kind, number, payload)))
        except OSError as error:
            raise BrokenLink(f"the connection has failed: {error.strerror}") from error

    def tell(self, kind: Kind, values: Mapping[str, Any], number: int = 0) -> None:
        """Send `values` as JSON."""
        self.send(kind, json.dumps(values).encode(), number)

    def receive(self) -> Frame:
        """The next frame. Raises BrokenLink."""
        return read_frame(self._connection, heard=self._note_life)

    def _note_life(self) -> None:
        self.heard = time.monotonic()

    def close(self) -> None:
        """What is being received ends too."""
        with contextlib.suppress(OSError):  # it is closed already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def let_in(connection: socket.socket, key: bytes) -> dict[str, Any]:
    """As the leader: what the process that has connected says of itself.

    Raises:
        WrongKey: it does not have the key.
        BrokenLink: it says something else, or nothing.
    """
    connection.settimeout(HANDSHAKE_SECONDS)
    ours = secrets.token_bytes(32)
    _send(connection, Frame(Kind.CHALLENGE, payload=ours))
    values = _expect(connection, Kind.HELLO).values
    try:
        theirs, hello, proof = bytes.fromhex(values["challenge"]), values["hello"], str(values["proof"])
        said = dict(hello)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenLink("its HELLO is incomplete") from error
    if not hmac.compare_digest(proof, _proof(key, "follower", ours, theirs, said)):
        raise WrongKey
    _send(connection, Frame(Kind.CHALLENGE, payload=_proof(key, "leader", theirs, ours, said).encode()))
    return said


def enter(connection: socket.socket, key: bytes, hello: Mapping[str, Any]) -> None:
    """As a follower: say `hello` to the leader.

    Raises:
        WrongKey: it does not have the key.
        BrokenLink: it says something else, or nothing.
    """
    connection.settimeout(HANDSHAKE_SECONDS)
    theirs, ours = _expect(connection, Kind.CHALLENGE).payload, secrets.token_bytes(32)
    values = {"hello": hello, "challenge": ours.hex(), "proof": _proof(key, "follower", theirs, ours, hello)}
    _send(connection, Frame(Kind.HELLO, payload=json.dumps(values).encode()))
    answer = read_frame(connection, LONGEST_HELLO)
    wanted = _proof(key, "leader", ours, theirs, hello).encode()
    if answer.kind is Kind.ENDED or not hmac.compare_digest(answer.payload, wanted):
        raise WrongKey


def _proof(key: bytes, role: str, challenge: bytes, own: bytes, hello: Mapping[str, Any]) -> str:
    said = json.dumps(hello, sort_keys=True).encode()
    return hmac.new(key, role.encode() + challenge + own + said, hashlib.sha256).hexdigest()


def _expect(connection: socket.socket, kind: Kind) -> Frame:
    frame = read_frame(connection, LONGEST_HELLO)
    if frame.kind is not kind:
        raise BrokenLink(f"a {frame.kind.name} in place of a {kind.name}")
    return frame


def _send(connection: socket.socket, frame: Frame) -> None:
    try:
        connection.sendall(written(frame))
    except OSError as error:
        raise BrokenLink(f"the connection has failed: {error.strerror}") from error
