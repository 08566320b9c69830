"""Work that ends when its client leaves.

Starlette does not cancel the handler of a plain answer when the client disconnects; `while_connected` does.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.errors import ClientGone

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await `work`, but cancel it and raise ClientGone if the client disconnects first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await stop(gone)
        await stop(task)


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(task: "asyncio.Future[Any]") -> None:
    """Cancel `task` once and wait for its end: whatever it held has been given back when this returns."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
