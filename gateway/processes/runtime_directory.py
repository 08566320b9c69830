"""The server's runtime directory: the engine's socket, and what several HTTP processes share.

It is named by the port, which is ours alone, nobody else may look into it, and it goes when the server ends. A server
that is killed leaves its directory behind, for the next one of the same prefix to take away: a lock on a file in it,
which the kernel lets go when its holder dies, tells whether anybody lives there.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from jaxengine.rpc.transport import check_length, make_private

SOCKET = "engine.sock"
LOCK = "lock"
TRIES, PAUSE = 50, 0.02  # another server that starts may just be taking away what it takes for abandoned


@contextlib.contextmanager
def runtime_directory(prefix: Path, port: int) -> Iterator[Path]:
    """The directory of the server on `port`, which is ours until the block ends.

    Raises:
        ValueError: it is another server's, or not private, or too long for a socket in it.
        OSError: it cannot be made.
    """
    directory = Path(f"{prefix}-{port}")
    check_length(directory / SOCKET)
    lock = _occupy(directory)
    try:
        for other in prefix.parent.glob(f"{prefix.name}-*"):
            if other != directory:
                _clear_if_abandoned(other)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _occupy(directory: Path) -> int:
    """The lock of a directory that is now ours, with nothing in it of whoever had the port before."""
    for _ in range(TRIES):
        make_private(directory)
        try:
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the directory was taken away just now
            continue
        if _is_free(lock) and _is_at(lock, directory / LOCK):
            _empty(directory)
            return lock
        os.close(lock)
        time.sleep(PAUSE)
    raise ValueError(f"another server uses {directory}: give this one a --shard-uds-path of its own")


def _empty(directory: Path) -> None:
    for each in directory.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != LOCK:
            each.unlink(missing_ok=True)


def _clear_if_abandoned(directory: Path) -> None:
    """Best effort: what cannot be read or removed is somebody else's."""
    with contextlib.suppress(OSError):
        if not _is_a_servers(directory):
            return
        lock = os.open(directory / LOCK, os.O_RDWR)
        try:
            if _is_free(lock):
                shutil.rmtree(directory)
        finally:
            os.close(lock)


def _is_a_servers(directory: Path) -> bool:
    """Whether it is named and kept as ours are. Whoever shares the prefix by chance must lose nothing."""
    status = directory.lstat()
    private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    return private and status.st_uid == os.getuid() and directory.name.rpartition("-")[2].isdecimal()


def _is_free(lock: int) -> bool:
    """Whether nobody held it; now we do."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(lock: int, path: Path) -> bool:
    """Whether the file we hold was not taken away before we held it."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
