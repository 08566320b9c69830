"""The server's runtime directory: the engine's socket and its token, and what several HTTP processes share.

Its name ends in the port, which no other server has. It is private, and it is removed when the server ends. A server
that is killed leaves its directory behind, and the next server with the same prefix removes it. A lock on a file in the
directory tells whether its server still runs: the kernel releases the lock when the holder dies.
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

LOCK = "lock"
TOKEN = "token"
TRIES, PAUSE = 50, 0.02  # another server may be removing the directory at this moment, as abandoned


def socket_of(directory: Path, engine: int | None = None) -> Path:
    """The socket of one of several engines, or of the only one."""
    return directory / ("engine.sock" if engine is None else f"engine-{engine}.sock")


def write_token(directory: Path, token: str) -> None:
    """Leave the engines' token for `text-generation-benchmark`, where only this user finds it.

    This opens nothing: whoever may read the file may also read the engine's environment, which has the token.
    """
    with open(os.open(directory / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token)


def read_token(directory: Path) -> str:
    """That of the server whose directory it is; "" if there is none. Raises PermissionError."""
    try:
        return (directory / TOKEN).read_text()
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def runtime_directory(prefix: Path, port: int | str, engines: int = 1) -> Iterator[Path]:
    """The directory of the server on `port`, or with another name of its own, locked for this process until the block
    ends.

    Raises:
        ValueError: another server uses it, or it is not private, or its path is too long for a socket.
        OSError: it cannot be made.
    """
    directory = Path(f"{prefix}-{port}")
    check_length(socket_of(directory, engines - 1 if engines > 1 else None))
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
    """Lock `directory` and empty it of what an earlier server on the port left; the lock's file descriptor."""
    for _ in range(TRIES):
        make_private(directory)
        try:
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # another server removed the directory in between
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
    """Remove the directory of a server that was killed. What cannot be read or removed is left alone."""
    with contextlib.suppress(OSError):
        if not _is_runtime_directory(directory):
            return
        lock = os.open(directory / LOCK, os.O_RDWR)
        try:
            if _is_free(lock):
                shutil.rmtree(directory)
        finally:
            os.close(lock)


def _is_runtime_directory(directory: Path) -> bool:
    """Whether `directory` has the name, owner and mode of a runtime directory: others may have the prefix by chance."""
    status = directory.lstat()
    private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    return private and status.st_uid == os.getuid() and directory.name.rpartition("-")[2].isdecimal()


def _is_free(lock: int) -> bool:
    """Whether no other process held the lock. If so, this process holds it now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(lock: int, path: Path) -> bool:
    """Whether `path` is still the locked file: another server may have removed it before this one had the lock."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
