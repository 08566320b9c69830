"""What every call goes through, whichever it is: the key, the number at work, the log line, errors as statuses.

All calls are served as gRPC's streams, also those that have one request: so the key is checked before a message is
read, a message that does not come is not waited for for ever, and one that does not parse gets an error of ours. It
costs a call 0.1 ms (grpcio 1.85).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import grpc

from gateway.errors import ClientGone, Kind, RequestError, as_request_error
from gateway.http.h11_protocol import BODY_SECONDS, STALL_SECONDS
from gateway.http.request_limits import RETRY_SECONDS
from gateway.observability.access_log import write_line
from gateway.request.auth import known_caller
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.keys import ANYBODY
from gateway.routes.kserve.errors import WORDING

SLOWEST = 1 << 20  # bytes a second that a client must read of a long message
GONE = (asyncio.CancelledError, grpc.aio.BaseError, ClientGone)  # how a call ends that nobody waits for any more


class Call:
    """One call: what its client sends and is sent. Messages are bytes.

    info: of a request that the call has, or of each.
    """

    def __init__(self, context: Any, name: str) -> None:
        self._context = context
        self._metadata = context.invocation_metadata() or ()
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self.read_count = self.written_bytes = 0
        self.client = _address(context.peer())  # now: a call that was cut no longer knows
        traceparent = next(iter(self.metadata("traceparent")), "")
        self.info = RequestInfo(ANYBODY, time.perf_counter(), name, traceparent)

    def metadata(self, name: str) -> list[str]:
        """All values that the client sends under `name`, which is in lower case."""
        return [str(value) for key, value in self._metadata if key == name]

    async def read(self) -> bytes | None:
        """The next message; None if there are no more."""
        message = await self._context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in grpc-stubs
            return None
        self.read_count += 1
        return bytes(message)

    async def read_one(self) -> bytes:
        """The only message. Raises RequestError if it does not come."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self.read()
        except TimeoutError:
            slow = f"The message took longer than {BODY_SECONDS:g} seconds"
            raise RequestError(Kind.BODY_TIMEOUT, slow) from None
        if message is None:
            raise RequestError(Kind.MALFORMED, "the call has no message")
        return message

    async def write(self, message: bytes) -> None:
        """Raises ClientGone if the client does not read: its requests would keep their permits for ever."""
        async with self._writing:
            try:
                async with asyncio.timeout(STALL_SECONDS + len(message) / SLOWEST):
                    await self._context.write(message)
            except TimeoutError:
                raise ClientGone from None
        self.written_bytes += len(message)

    async def refuse(self, error: RequestError) -> None:
        """End the call with `error`; raises what tells gRPC so."""
        trailing = () if error.retry_after is None else (("retry-after", str(error.retry_after)),)
        await self._context.abort(WORDING[error.kind][1], error.message, trailing)


Serve = Callable[[Call], Awaitable[None]]


class Bound:
    """At most `most` of something at once; `what` is its plural."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self._count = most, what, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more until the block ends. Raises RequestError if there are too many."""
        if self._count >= self._most:
            message = f"more than {self._most} {self._what} at once"
            raise RequestError(Kind.UNAVAILABLE, message, retry_after=RETRY_SECONDS)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Calls:
    """The calls of one process, and all that they do.

    At most `most` requests are at work, and as many streams open: these may stay open without a request, so they take
    no request's place.
    """

    def __init__(self, gateway: Gateway, most: int) -> None:
        self._gateway = gateway
        self.requests, self.streams = Bound(most, "requests"), Bound(most, "streams")
        self._open: set[asyncio.Task[Any]] = set()

    def handler(self, service: str, name: str, serve: Serve, bound: Bound | None) -> Any:
        """gRPC's handler of the call `name`, as which `serve` reads and writes. It counts in `bound`; a probe, which is
        always let in, has none.
        """

        async def handle(_messages: object, context: Any) -> None:
            call, status = Call(context, name), grpc.StatusCode.CANCELLED
            self._note()
            try:
                if bound is None:
                    await serve(call)
                else:
                    await self._serve(call, serve, bound)
                status = grpc.StatusCode.OK
            except ClientGone:
                await call.refuse(RequestError(Kind.DEADLINE, f"the answer was not read for {STALL_SECONDS:g} seconds"))
            except GONE:
                raise
            except Exception as error:
                refusal = as_request_error(error)
                status = WORDING[refusal.kind][1]
                await call.refuse(refusal)
            finally:
                _log(call, f"/{service}/{name}", status, logging.DEBUG if bound is None else logging.INFO)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _note(self) -> None:
        """Take note of this task until it ends."""
        if task := asyncio.current_task():
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def ended(self) -> None:
        """Return when no call is open. gRPC's server tells calls to end when it stops, and does not wait for it."""
        if self._open:
            await asyncio.wait(self._open)

    async def _serve(self, call: Call, serve: Serve, bound: Bound) -> None:
        caller = known_caller(self._gateway, call.metadata("authorization"), call.metadata("x-api-key"))
        call.info = replace(call.info, caller=caller)
        with bound.one():
            await serve(call)


def _address(peer: str) -> str:
    """Of `ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80` the address."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or "-"


def _log(call: Call, path: str, status: grpc.StatusCode, level: int) -> None:
    """The line of the access log, shaped as HTTP's."""
    fields: dict[str, Any] = {
        "method": "gRPC",
        "path": path,
        "status": status.name,
        "seconds": round(time.perf_counter() - call.info.arrival, 4),
        "bytes": call.written_bytes,
        "client": call.client,
    }
    if call.read_count > 1:
        fields["requests"] = call.read_count
    write_line(level, fields, call.info.log_fields, call.info.name, complete=status is not grpc.StatusCode.CANCELLED)
