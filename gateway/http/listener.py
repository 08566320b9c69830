"""Binds the port before anything slow is done: a busy port fails at once, and clients get a 503 while a model loads."""

import ipaddress
import socket
import ssl
from pathlib import Path

from gateway.config.options import Options

BACKLOG = 2048
CERTIFICATE, PRIVATE_KEY = "CERTIFICATE", "PRIVATE KEY"  # how PEM files call what they hold
MAX_SHOWN = 255  # characters of a host's name, of which DNS has no longer ones


class CannotListen(Exception):
    """The message names the address and says why."""


def bind(hostname: str, port: int, sockets: int = 1) -> list[socket.socket]:
    """Listening sockets, all on one port, among which the kernel spreads connections.

    Raises:
        CannotListen: the name is unknown or the address taken.
    """
    try:
        return _bind(hostname, port, sockets)
    except (OSError, UnicodeError) as error:
        raise _refusal(hostname, port, error) from error


def _bind(hostname: str, port: int, sockets: int) -> list[socket.socket]:
    if sockets == 1:
        return [_listen(hostname, port)]
    port = _free(hostname, port)
    return [_listen(hostname, port, shared=True) for _ in range(sockets)]


def _free(hostname: str, port: int) -> int:
    """The port, which nobody listens on: a bind with SO_REUSEPORT would succeed beside another server of ours."""
    with _listen(hostname, port) as first:
        return int(first.getsockname()[1])


def reserve(hostname: str, port: int) -> socket.socket:
    """A socket that keeps a port, on which it never listens, for servers of ours that bind the port themselves.

    Raises:
        CannotListen: as `bind`.
    """
    try:
        return _bound(hostname, _free(hostname, port), shared=True)
    except (OSError, UnicodeError) as error:
        raise _refusal(hostname, port, error) from error


def _refusal(hostname: str, port: int, error: OSError | UnicodeError) -> CannotListen:
    """Names that DNS cannot have, such as `a..b` or one of 300 letters, are UnicodeErrors of Python's."""
    why = error.strerror if isinstance(error, OSError) else "no host can have this name"
    return CannotListen(f"cannot listen on {hostname[:MAX_SHOWN]}:{port}: {why}")


def address_of(bound: socket.socket) -> str:
    """As URLs have it: `127.0.0.1:80`, `[::1]:80`."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(hostname: str, port: int, *, shared: bool = False) -> socket.socket:
    listener = _bound(hostname, port, shared=shared)
    try:
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bound(hostname: str, port: int, *, shared: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can connect."""
    address = ipaddress.ip_address(listener.getsockname()[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def tls_problem(options: Options) -> str | None:
    """What is wrong with the certificate and key, if anything is."""
    if options.ssl_certfile is None:
        return None
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        return f"--ssl-certfile and --ssl-keyfile cannot be used: {_tls_reason(error, certificate, key)}"
    return None


def _no_password() -> str:
    """Else OpenSSL would ask on the terminal, and wait, in every process and at every start."""
    raise ValueError("the key is encrypted; openssl pkey -in KEY -out NEW writes one that is not")


def _tls_reason(error: OSError | ValueError, certificate: Path, key: Path | None) -> str:
    """OpenSSL tells a key of another certificate, and little else, by a word of its own."""
    if not isinstance(error, ssl.SSLError):
        return getattr(error, "strerror", None) or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    wanted = {CERTIFICATE: certificate, PRIVATE_KEY: key or certificate}
    missing = [f"{path} holds no {what} in PEM" for what, path in wanted.items() if not _has_pem(path, what)]
    return "; ".join(missing) or "the certificate or the key is damaged"


def _has_pem(path: Path, what: str) -> bool:
    return f"{what}-----" in path.read_text("ascii", "replace")
