"""Routes whose exceptions become answers, in the words of each dialect."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gateway.errors import CLIENT_CLOSED_REQUEST, ClientGone, RequestError, as_request_error

Refusal = Callable[[RequestError], Response]


class RefusingRoute(APIRoute):
    """A route of a dialect, which says what its `refusal` is."""

    @staticmethod
    def refusal(error: RequestError) -> Response:
        """The answer to a request that has failed so."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await answered(handle(request), self.refusal)

        return handle_request


async def answered(work: Awaitable[Response], refusal: Refusal) -> Response:
    """The answer of `work`, or what `refusal` makes of its exception; an empty one for a client that has left."""
    try:
        return await work
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except Exception as error:
        return refusal(as_request_error(error))
