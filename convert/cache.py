"""Our own cache directory: private, locked per entry, and never showing a half-written entry.

An entry is a directory that appears by rename once it is complete. Whatever interrupts the process that makes it (a
crash, a full disk, kill -9) leaves only a temporary directory, which the next process removes. Nothing is ever evicted.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from convert.announce import announce
from convert.errors import CANNOT_CREATE, IO, USAGE, CheckpointError

NAME = "text-generation-jax"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_root(override: Path | None = None) -> Path:
    """`override`, or `$XDG_CACHE_HOME`, or `~/.cache`, and our name; created with mode 0700.

    Raises:
        CheckpointError: it cannot be created, or others could write to it: its contents are trusted.
    """
    base = override or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = base.expanduser().absolute() / NAME
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = root.stat().st_mode
    except OSError as error:
        message = f"cache directory {root} cannot be created: {error.strerror}; set XDG_CACHE_HOME"
        raise CheckpointError(message, exit_code=CANNOT_CREATE) from error
    if mode & 0o022:
        message = f"cache directory {root} is writable by others (mode {mode & 0o777:o}); chmod 700 it"
        raise CheckpointError(message, exit_code=CANNOT_CREATE)
    return root


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold the lock of `entry`, which excludes other processes and is released even by kill -9.

    The lock file `entry.lock` is never deleted: two processes could then hold locks on different files.
    """
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (entry.parent / f"{entry.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"waiting for another process that prepares {entry.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def new_directory(target: Path, mode: int = 0o777) -> Iterator[Path]:
    """A temporary directory beside `target` that becomes `target` when the block ends well, and vanishes otherwise.

    Temporary directories of interrupted processes are removed first. The directory has `mode` as far as the user's
    umask allows.

    Raises:
        CheckpointError: another process writes `target`, or it holds something when the block ends; or the disk fails.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        temporary = target.parent / f".{target.name}.tmp-{secrets.token_hex(8)}"
        temporary.mkdir(mode)
        try:
            with _lock_of(temporary):
                yield temporary
                for path in (*temporary.iterdir(), temporary):
                    sync(path)
                temporary.rename(target)  # which replaces an empty directory, and nothing else
                sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Raises CheckpointError where the process that made a temporary directory of `target` is still there."""
    for leftover in target.parent.glob(f".{target.name}.tmp-*"):
        try:
            with _lock_of(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            raise CheckpointError(f"{target}: another process writes it", exit_code=USAGE) from None
        except FileNotFoundError:  # it has just been finished, or removed
            continue


@contextmanager
def _lock_of(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory itself, where its file system has locks. Raises BlockingIOError, OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
        yield
    finally:
        os.close(descriptor)


def made_once(entry: Path, make: Callable[[Path], None]) -> Path:
    """`entry`, a directory that `make` has filled: now, or in this or another process before."""
    with locked(entry):
        if not entry.is_dir():
            with new_directory(entry, mode=0o700) as made:
                make(made)
    return entry


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn an `OSError` while writing `target` into a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        full = "disk is full: " if error.errno in DISK_FULL else ""
        raise CheckpointError(f"writing {target}: {full}{error.strerror or error}", exit_code=IO) from error


def require_space(directory: Path, needed: int) -> None:
    """Raise CheckpointError, before the work starts, unless `needed` bytes and a tenth more are free."""
    free = shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.exists())).free
    if free < needed * 1.1:
        message = f"{directory}: needs {needed * 1.1 / 1e6:.0f} MB of free disk, has {free / 1e6:.0f} MB"
        raise CheckpointError(message, exit_code=IO)


def sync(path: Path) -> None:
    """fsync a file or directory, so that a rename cannot outlive its contents in a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stamp(file: Path) -> str:
    """A text that changes when `file` is replaced or written anew; cheaper than `sha256`."""
    path, state = file.resolve(), file.stat()
    return f"{path}|{state.st_dev}|{state.st_ino}|{state.st_size}|{state.st_mtime_ns}"


def has_sha256(file: Path, expected: str, verified: Path) -> bool:
    """Whether `file` has this digest. `verified` is a directory that remembers files that had, until they change."""
    key = f"{stamp(file)}|{expected}"
    mark = verified / hashlib.sha256(key.encode()).hexdigest()
    if mark.exists():
        return True
    if sha256(file) != expected:
        return False
    with disk_errors(verified):
        verified.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch()
    return True


def sha256(file: Path) -> str:
    with file.open("rb") as contents:
        return hashlib.file_digest(contents, "sha256").hexdigest()
