"""The open connections, and which of them is closed when there are too many.

A connection waits while its client still has to send something: a request's head, or the rest of a body. It works from
the end of a request until the end of its answer. Waiting costs a client nothing, so an attacker can hold thousands of
waiting connections: for each connection beyond the limit, the one that has waited longest is closed. A working
connection is never closed; `gateway.http.request_limits.RequestLimit` bounds their number.
"""

import resource
from typing import Protocol

from gateway.http.listener import BACKLOG

MAX_CONNECTIONS = 16_384  # with a head of 64 KiB half sent on each, they take 1 GiB of memory
OTHER_OPEN_FILES = 256  # the log, the model's files, the engine's socket, pipes


class Connection(Protocol):
    """What `Connections` needs of a connection."""

    def abort(self) -> None:
        """Close at once, without writing what is still buffered."""
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
        """Add a new connection, which waits for its first request. Closes the one that has waited longest if there are
        too many.
        """
        self._open.add(connection)
        self.awaits_client(connection)
        if len(self._open) > self.limit:
            oldest = next(iter(self._waiting))
            self.closed(oldest)  # now: more may open before the loop reports this
            oldest.abort()

    def awaits_client(self, connection: Connection) -> None:
        """The client of `connection` has to send something. Idempotent: sending a part does not restart the wait."""
        if connection in self._open:
            self._waiting.setdefault(connection)

    def works_for_client(self, connection: Connection) -> None:
        """The request of `connection` has been received. Idempotent."""
        self._waiting.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """Remove `connection`. Idempotent."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def connection_limit() -> int:
    """How many connections this process may have open: as its limit of open files allows, at most `MAX_CONNECTIONS`.

    Raises the soft limit of open files, which is 1,024 on most systems, towards the hard one as far as that is of use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = OTHER_OPEN_FILES + BACKLOG  # a whole backlog may be accepted before the replaced ones are closed
    wanted = MAX_CONNECTIONS + reserved
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - reserved, soft // 2))
