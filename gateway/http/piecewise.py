"""A long answer, sent piece by piece: a client that reads slowly has its time anew for each.

The protocol closes a connection that does not take what is written within `STALL_SECONDS`. As one piece, 64 MiB would
need 18 Mbit/s.
"""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE = 1 << 20  # bytes


class PiecewiseResponse(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body) or 1, PIECE):
            piece = self.body[start : start + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": start + PIECE < len(self.body)})
