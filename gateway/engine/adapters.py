"""The adapters of the connected engine: what its session says of them, and the calls that change them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import grpc

from gateway.engine.interface import EngineUnavailable
from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb

logger = logging.getLogger(__name__)

KINDS = {
    grpc.StatusCode.INVALID_ARGUMENT: Kind.INVALID,
    grpc.StatusCode.ALREADY_EXISTS: Kind.INVALID,
    grpc.StatusCode.FAILED_PRECONDITION: Kind.INVALID,
    grpc.StatusCode.NOT_FOUND: Kind.MODEL_NOT_FOUND,
}
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

T = TypeVar("T")


class EngineAdapters:
    """`gateway.engine.interface.Adapters` of one client.

    Args:
        retry_after: see `Engine.retry_after`.
    """

    def __init__(self, credentials: tuple[tuple[str, str], ...], retry_after: Callable[[], int]) -> None:
        self._credentials, self._retry_after = credentials, retry_after
        self._stub: Any = None  # while an engine is connected
        self.served: Mapping[str, pb.Adapter] = {}

    def connect(self, stub: Any) -> None:
        """Calls go to `stub` from now on; None: there is no engine."""
        self._stub = stub

    def told(self, adapters: pb.AdapterList) -> None:
        """The engine says what it serves."""
        self.served = {adapter.name: adapter for adapter in adapters.adapters}

    async def refresh(self) -> None:
        self.told(await self._call(lambda stub: stub.ListAdapters, pb.ListAdaptersRequest()))

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        request = pb.LoadAdapterRequest(name=name, path=path, in_place=in_place)
        await self._call(lambda stub: stub.LoadAdapter, request)
        await self.refresh()  # the session may tell it a moment later

    async def unload(self, name: str) -> None:
        await self._call(lambda stub: stub.UnloadAdapter, pb.UnloadAdapterRequest(name=name))
        await self.refresh()

    async def _call(self, method: Callable[[Any], Callable[..., Coroutine[Any, Any, T]]], request: Any) -> T:
        if self._stub is None:
            raise EngineUnavailable("the engine is not ready", self._retry_after())
        try:
            return await method(self._stub)(request, metadata=self._credentials)
        except grpc.aio.AioRpcError as error:
            raise self._refusal(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EngineUnavailable("the engine stopped", self._retry_after()) from None  # its channel was closed

    def _refusal(self, error: grpc.aio.AioRpcError) -> RequestError:
        if error.code() in GONE:
            return EngineUnavailable("the engine stopped", self._retry_after())
        kind = KINDS.get(error.code(), Kind.INTERNAL)
        if kind is Kind.INTERNAL:
            logger.error("a call of the engine failed: %s %s", error.code(), error.details())
            return RequestError(kind, "internal error")
        return RequestError(kind, error.details() or "the engine refused the call")
