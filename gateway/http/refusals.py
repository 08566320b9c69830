"""Refusals at a bounded rate while others are being answered.

A refusal costs the event loop 0.4 to 1 ms, as much as 20 to 50 events of a stream, and its sender nothing. Beyond
`BURST` at once, and `PER_SECOND` from then on, each waits its turn, so a client that sends nothing but refused requests
slows itself down. None waits longer than `LONGEST`, lest a flood keep others from reading what was wrong. Who is
refused for want of room (429) is told when to return and does not wait, nor does who has left (499).
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import CLIENT_CLOSED_REQUEST

PER_SECOND = 100
BURST = 50
LONGEST = 5.0  # seconds
AT_ONCE = (429, CLIENT_CLOSED_REQUEST)


class PacedRefusals:
    """ASGI: holds an answer of status 4xx back until it is its turn. The application is done with the request then, so
    it holds nothing that others want.

    Args:
        busy: whether anybody is being answered who would be slowed down.
    """

    def __init__(self, app: ASGIApp, busy: Callable[[], bool]) -> None:
        self._app = app
        self._busy = busy
        self._next = 0.0  # when the next refusal beyond the burst goes out, on the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal: list[Message] = []

        async def unless_refused(message: Message) -> None:
            if refusal or _is_paced(message):
                refusal.append(message)
            else:
                await send(message)

        await self._app(scope, receive, unless_refused)
        if refusal:
            await self._turn()
        for message in refusal:
            await send(message)

    async def _turn(self) -> None:
        if not self._busy():
            return
        now = asyncio.get_running_loop().time()
        self._next = min(max(self._next, now - BURST / PER_SECOND) + 1 / PER_SECOND, now + LONGEST)
        if self._next > now:
            await asyncio.sleep(self._next - now)


def _is_paced(message: Message) -> bool:
    status = message.get("status", 0)  # of a message that begins an answer
    return 400 <= status < 500 and status not in AT_ONCE
