"""Answers that a client may ask for again, or go on from, by their ids: kept for a while, for their caller alone.

The store is SQLite's: in memory where there is one HTTP process, else in a file of the runtime directory, which all
processes share and which is removed when the server ends. So it holds what clients wrote, but no longer than the server
runs. The records that were not used for longest make room for new ones.

Nothing here knows what a record means: it is JSON, with the ids of the items in it by which it can be found too.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from gateway.errors import Kind, RequestError

logger = logging.getLogger(__name__)

FILE = "responses.sqlite"  # in the runtime directory
IN_MEMORY = ":memory:"
WAIT_SECONDS = 10  # for another process that writes
RETRY_SECONDS = 1  # advised to a client
# Without a wait for the disk: what a power failure would lose is of no use after it. `secure_delete` overwrites.
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS records (
    id TEXT PRIMARY KEY, caller INTEGER NOT NULL, used INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_use ON records (used);
CREATE TABLE IF NOT EXISTS items (
    id TEXT, record TEXT REFERENCES records ON DELETE CASCADE, PRIMARY KEY (id, record)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_record ON items (record);
PRAGMA foreign_keys = ON;
"""

Record = dict[str, Any]
Result = TypeVar("Result")


class ResponseStore:
    """At most `most` records of `most_bytes` of JSON in all; `most` 0 keeps nothing.

    Args:
        directory: what the HTTP processes share, if there are several.
    """

    def __init__(self, most: int, most_bytes: int, directory: Path | None = None) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._path = IN_MEMORY if directory is None else directory / FILE
        # Opened when first used, but a shared one at once: the first process makes the file before others start.
        self._connection = None if directory is None else self._open()
        # Of its own: a connection has one transaction at a time, and those that wait need no thread of other work.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def put(self, id: str, caller: int, record: Record, items: Iterable[str]) -> bool:
        """Keep `record`, which may be found by the ids of its `items` too. Returns whether it is kept: one larger than
        the store is not, nor one that cannot be written, as no answer must be lost because it cannot be kept.
        """
        try:
            return await self._in_thread(lambda database: self._put(database, id, caller, record, items))
        except sqlite3.Error:
            logger.exception("a response could not be stored")
            return False

    async def get(self, id: str, caller: int) -> Record | None:
        """The record of that id, if it is kept for `caller`. Raises as `_asked`."""
        return await self._asked(lambda database: _use(database, "id = ?", id, caller))

    async def get_by_item(self, item: str, caller: int) -> Record | None:
        """A record of `caller` that holds the item of that id. Raises as `_asked`."""
        having = "id IN (SELECT record FROM items WHERE items.id = ?)"
        return await self._asked(lambda database: _use(database, having, item, caller))

    async def delete(self, id: str, caller: int) -> bool:
        """Forget the record; whether there was one. Raises as `_asked`."""

        def forget(database: sqlite3.Connection) -> bool:
            return database.execute("DELETE FROM records WHERE id = ? AND caller = ?", (id, caller)).rowcount > 0

        return await self._asked(forget)

    def close(self) -> None:
        """For good, once all that was asked for is done."""
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()

    async def _asked(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """What a client asks the store for. Raises RequestError, UNAVAILABLE, where another process writes for too long
        or the file cannot be read.
        """
        try:
            return await self._in_thread(work)
        except sqlite3.Error as error:
            logger.exception("the store of responses does not answer")
            message = "the store of responses does not answer"
            raise RequestError(Kind.UNAVAILABLE, message, retry_after=RETRY_SECONDS) from error

    async def _in_thread(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """`work` in one transaction, which may wait for other processes. Raises sqlite3.Error."""

        def run() -> Result:
            if self._connection is None:
                self._connection = self._open()
            with self._connection as database:
                return work(database)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=WAIT_SECONDS, check_same_thread=False)
        database.executescript(SCHEMA)
        return database

    def _put(self, database: sqlite3.Connection, id: str, caller: int, record: Record, items: Iterable[str]) -> bool:
        body = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        if not self.most or len(body) > self.most_bytes:
            return False
        row = (id, caller, time.monotonic_ns(), len(body), body)  # a clock that all processes share
        database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", row)
        database.executemany("INSERT OR IGNORE INTO items VALUES (?, ?)", ((item, id) for item in items))
        self._make_room(database)
        return True

    def _make_room(self, database: sqlite3.Connection) -> None:
        count, size = database.execute("SELECT count(*), sum(size) FROM records").fetchone()
        with closing(database.execute("SELECT id, size FROM records ORDER BY used")) as oldest:
            old = []
            while count > self.most or size > self.most_bytes:
                id, bytes_freed = oldest.fetchone()
                count, size = count - 1, size - bytes_freed
                old.append((id,))
        database.executemany("DELETE FROM records WHERE id = ?", old)


def _use(database: sqlite3.Connection, having: str, *values: Any) -> Record | None:
    """The record `having` these values, the last of which is the caller; it is now the one used last."""
    query = f"SELECT id, body FROM records WHERE {having} AND caller = ? LIMIT 1"
    found = database.execute(query, values).fetchall()  # to its end: an open query would keep an old state for the next
    if not found:
        return None
    [(id, body)] = found
    database.execute("UPDATE records SET used = ? WHERE id = ?", (time.monotonic_ns(), id))
    record: Record = json.loads(body)
    return record
