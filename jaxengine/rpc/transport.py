"""The connection between gateway and engine: a Unix socket that no other user can open, and a secret token.

The socket is in a directory of mode 0700. The token is drawn anew at every start. It is passed to the engine in the
environment, never as an argument, since any user of the machine can list those. There is no unauthenticated mode: both
sides refuse an empty token.
"""

import hmac
import os
import secrets
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

TOKEN_VARIABLE = "TEXT_GENERATION_ENGINE_TOKEN"
TOKEN_METADATA = "authorization"

# A prompt of a million ids with logprobs and five alternatives each is about 60 MB; gRPC's own limit is 4 MB.
MAX_MESSAGE_BYTES = 256 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
# sun_path holds 108 bytes on Linux, the last one a NUL.
MAX_SOCKET_PATH = 107


def new_token() -> str:
    return secrets.token_hex(32)


def address(path: Path) -> str:
    return f"unix:{path}"


def credentials(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata every call carries."""
    return ((TOKEN_METADATA, _not_empty(token)),)


def prepare_socket(path: Path) -> None:
    """Make the socket's directory private and remove a socket that no server listens on any more.

    Raises:
        ValueError: the path is too long, its directory is open to others, or another server listens on it.
        OSError: the directory cannot be made.
    """
    check_length(path)
    make_private(path.parent)
    if path.exists():
        if _answers(path):
            raise ValueError(f"another server listens on {path}")
        path.unlink()


def check_length(path: Path) -> None:
    """Raises ValueError if no socket can have this path."""
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise ValueError(f"socket path {path} has {length} bytes, at most {MAX_SOCKET_PATH} are possible")


def make_private(directory: Path) -> None:
    """Make a directory that no other user can read, unless it exists.

    Raises:
        ValueError: it exists and is open to other users.
        OSError: it cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ValueError(f"socket directory {directory} must belong to this user with mode 0700")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def _not_empty(token: str) -> str:
    if not token:
        raise ValueError(f"the engine token is empty: set {TOKEN_VARIABLE}")
    return token


Handler = Any  # grpc's, which has no public type
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class TokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc, type-arg]  # depends on the stubs installed
    """Refuses every call that does not carry the token, before its handler is looked up."""

    def __init__(self, token: str) -> None:
        self._token = _not_empty(token).encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        metadata = handler_call_details.invocation_metadata or ()
        offered = [value for key, value in metadata if key == TOKEN_METADATA]
        if len(offered) == 1 and hmac.compare_digest(str(offered[0]).encode(), self._token):
            return await continuation(handler_call_details)
        # A streaming handler answers before any message arrives, whatever kind of call this is.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this boot's token is missing or wrong")
