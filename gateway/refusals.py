"""Refusals at a bounded rate while others are being answered.

A refusal costs the event loop 0.4 to 1 ms, as much as 20 to 50 events of a stream, and its sender nothing. Beyond
`BURST` at once, and `PER_SECOND` from then on, each waits its turn, so a client that sends nothing but refused requests
slows itself down. At most `WAITING` wait, lest they take the places of others. Who is refused for want of room (429)
is told when to return and does not wait.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PER_SECOND = 100
BURST = 50
WAITING = 256
OVERLOADED = 429


class PacedRefusals:
    """ASGI: holds an answer of status 4xx back until it is its turn.

    Args:
        busy: whether anybody is being answered who would be slowed down.
    """

    def __init__(self, app: ASGIApp, busy: Callable[[], bool]) -> None:
        self._app = app
        self._busy = busy
        self._next = 0.0  # when the next refusal beyond the burst goes out, on the loop's clock
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def paced(message: Message) -> None:
            if 400 <= message.get("status", 0) < 500 and message["status"] != OVERLOADED:
                await self._turn()
            await send(message)

        await self._app(scope, receive, paced)

    async def _turn(self) -> None:
        if self._waiting >= WAITING or not self._busy():
            return
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - BURST / PER_SECOND) + 1 / PER_SECOND
        if self._next <= now:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(self._next - now)
        finally:
            self._waiting -= 1
