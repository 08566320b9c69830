"""Refusals at a bounded rate while others are being answered.

A refusal costs the event loop 0.4 to 1 ms, as much as 20 to 50 events of a stream, and its sender nothing. Beyond
`BURST` at once and `PER_SECOND` from then on each waits its turn, so clients that send nothing but refused requests
slow down themselves. At most `WAITING` wait, lest they fill the server's places; while nothing runs none does.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PER_SECOND = 100
BURST = 50
WAITING = 256


class PacedRefusals:
    """ASGI: holds back answers of status 4xx as long as their turn has not come.

    Args:
        busy: whether anybody else is being answered.
    """

    def __init__(self, app: ASGIApp, busy: Callable[[], bool]) -> None:
        self._app = app
        self._busy = busy
        self._next = 0.0  # when the next refusal beyond the burst may go out, on the loop's clock
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def paced(message: Message) -> None:
            if message["type"] == "http.response.start" and 400 <= message["status"] < 500:
                await self._turn()
            await send(message)

        await self._app(scope, receive, paced)

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - BURST / PER_SECOND) + 1 / PER_SECOND
        if self._next <= now or self._waiting >= WAITING or not self._busy():
            return
        self._waiting += 1
        try:
            await asyncio.sleep(self._next - now)
        finally:
            self._waiting -= 1
