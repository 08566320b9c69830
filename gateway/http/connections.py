"""Open connections, and which of them is closed when there are too many.

A connection waits while its client owes it something: a request's head, or the rest of a body. It works from the end
of a request until the end of its answer. Waiting costs a client nothing, so waiting connections are the ones an
attacker can have by the thousand: of these the one that has waited longest is closed for each that is opened beyond
the limit. A connection that works is never closed; their number is bounded by `gateway.http.guard.RequestLimit`.
"""

import resource
from typing import Protocol

from gateway.http.listener import BACKLOG

MOST = 16_384  # as many that each wait with half a head of 64 KiB take 1 GiB of memory
OTHER_FILES = 256  # the log, the model's files, the engine's socket, pipes


class Connection(Protocol):
    """What the table needs of a connection."""

    def abort(self) -> None:
        """Close at once, whatever is still to be written."""
        ...


class Connections:
    """The connections of one HTTP process, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # in the order in which they began to wait

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Connection) -> None:
        """A new one, which waits for its first request. Closes the oldest waiting one if they are too many."""
        self._open.add(connection)
        self.waits(connection)
        if len(self._open) > self.limit:
            oldest = next(iter(self._waiting))
            self.closed(oldest)  # now, not when the loop tells of it: each new connection closes one
            oldest.abort()

    def waits(self, connection: Connection) -> None:
        """Its client owes it something. Idempotent: sending a part of it does not make it younger."""
        if connection in self._open:
            self._waiting.setdefault(connection)

    def works(self, connection: Connection) -> None:
        """Its request has come whole. Idempotent."""
        self._waiting.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """It is no more. Idempotent."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def connection_limit() -> int:
    """How many connections this process may have open: what its limit of open files leaves, within `MOST`.

    Raises the soft limit, which is 1,024 on most systems, to the hard one as far as that helps.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = OTHER_FILES + BACKLOG  # so many may be accepted before those they replace are closed
    wanted = MOST + reserved
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MOST
    return min(MOST, max(soft - reserved, soft // 2))
