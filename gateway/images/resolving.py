"""Addresses of a name, by the system's resolver, which blocks for as long as it likes.

So each look-up has a thread, which is left behind when time is up and ends with the process. Their number is bounded.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from gateway.images.addresses import Address

Resolve = Callable[[str], Awaitable[list[Address]]]

AT_ONCE = 16

_threads = threading.BoundedSemaphore(AT_ONCE)


async def resolve(host: str) -> list[Address]:
    """The addresses of a name, or the one that `host` is. Raises OSError: there are none, or too many are asked for."""
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    if not _threads.acquire(blocking=False):
        raise OSError("too many names are being looked up")
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Address]] = loop.create_future()
    threading.Thread(target=_look_up, args=(host, loop, found), name="resolver", daemon=True).start()
    return await found


def _look_up(host: str, loop: asyncio.AbstractEventLoop, found: "asyncio.Future[list[Address]]") -> None:
    addresses: list[Address] = []
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(ip_address(str(row[4][0])) for row in rows))
    except (OSError, ValueError):  # not found; an address with a zone
        pass
    finally:
        _threads.release()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_tell, found, addresses)


def _tell(found: "asyncio.Future[list[Address]]", addresses: list[Address]) -> None:
    if found.done():  # nobody waits any more
        return
    if addresses:
        found.set_result(addresses)
    else:
        found.set_exception(OSError("the name has no address"))
