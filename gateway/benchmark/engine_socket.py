"""Where the engine is that the benchmark speaks to, and the token that it asks for."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from gateway.processes.runtime_directory import read_token, socket_of
from jaxengine.rpc import transport

FLAG = "--master-shard-uds-path"
PREFIX = Path("/tmp/text-generation-server")  # the launcher's default --shard-uds-path


class NoEngine(Exception):
    """There is no engine to speak to. The message says what to pass."""


def find(path: Path, environ: Mapping[str, str]) -> tuple[Path, str]:
    """The socket at `path`, or in the directory there, and its token: from the file beside it, else the environment.

    Raises:
        NoEngine: there is none, or no token, or they belong to somebody else.
    """
    try:
        socket = _socket(path)
        token = read_token(socket.parent) or environ.get(transport.TOKEN_VARIABLE, "")
    except PermissionError as error:
        raise NoEngine(f"{FLAG} {path}: {error.filename} belongs to another user") from None
    if not token:
        raise NoEngine(
            f"{FLAG} {path}: no token lies beside {socket}: put the one that the engine was started with into "
            f"{transport.TOKEN_VARIABLE}"
        )
    return socket, token


def _socket(path: Path) -> Path:
    candidates = (socket_of(path), socket_of(path, 0)) if path.is_dir() else (path,)
    for each in candidates:
        if _is_socket(each):
            return each
    what = "holds no engine's socket" if path.is_dir() else "is no socket" if path.exists() else "does not exist"
    raise NoEngine(
        f"{FLAG} {path} {what}: pass the directory of a server, which is its --shard-uds-path, a hyphen and its port; "
        f"{_others()}; or measure over HTTP with --url"
    )


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _others() -> str:
    found = sorted(each for each in PREFIX.parent.glob(f"{PREFIX.name}-*") if _may_hold_a_socket(each))
    return f"there are {', '.join(map(str, found))}" if found else f"there is none at {PREFIX}-*"


def _may_hold_a_socket(directory: Path) -> bool:
    try:
        return any(directory.glob("engine*.sock"))
    except OSError:
        return False
