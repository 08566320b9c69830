"""The adapters of an engine while it serves: loaded and unloaded one at a time, on a thread, beside running streams."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from jaxengine.options.adapters import NamedAdapter
from jaxengine.request.interface import AdapterRefused, DrivenEngine, ServedAdapter
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service import codec
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.service.daemon_thread import in_daemon_thread

logger = logging.getLogger(__name__)

STATUS = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "missing": grpc.StatusCode.NOT_FOUND,
    "taken": grpc.StatusCode.ALREADY_EXISTS,
    "off": grpc.StatusCode.FAILED_PRECONDITION,
}

T = TypeVar("T")


class CallRefused(Exception):
    """A call ends with `status` and the message."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


class Adapters:
    """Lives on the event loop.

    Args:
        changed: called with the new list whenever it has changed.
        record: where the list is noted too.
    """

    def __init__(
        self, engine: DrivenEngine, changed: Callable[[pb.AdapterList], None], record: AdapterRecord | None
    ) -> None:
        self._engine, self._changed, self._record = engine, changed, record
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()  # in progress

    @property
    def served(self) -> pb.AdapterList:
        return codec.adapters_to(self._engine.adapters())

    async def load(self, name: str, path: str, *, in_place: bool) -> pb.Adapter:
        """Raises CallRefused, and then nothing has changed."""
        adapter = await self._change(lambda: self._load(name, path, in_place))
        logger.info("adapter %r is served from %r, rank %d", adapter.name, adapter.path, adapter.rank)
        return codec.adapter_to(adapter)

    async def unload(self, name: str) -> None:
        """Raises CallRefused if no adapter has this name."""
        await self._change(lambda: self._engine.unload_adapter(name))
        logger.info("adapter %r is served no more", name)

    def stop(self) -> None:
        """End the calls in progress: the process is about to end."""
        for change in self._changes:
            change.cancel()

    def _load(self, name: str, path: str, in_place: bool) -> ServedAdapter:
        try:
            adapter = NamedAdapter(name, path)
        except ValueError as error:
            raise AdapterRefused("invalid", str(error)) from None
        return self._engine.load_adapter(adapter.name, adapter.path, in_place=in_place)

    async def _change(self, work: Callable[[], T]) -> T:
        """Do `work` on a thread. A caller that goes away leaves it to end, and the list is told all the same."""
        change = asyncio.create_task(self._do(work))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            if change.cancelled():
                raise CallRefused(grpc.StatusCode.UNAVAILABLE, "the engine is shutting down") from None
            raise

    async def _do(self, work: Callable[[], T]) -> T:
        async with self._lock:
            try:
                result = await in_daemon_thread("adapters", work)
            except AdapterRefused as error:
                logger.warning("a change of adapters was refused: %s", error)
                raise CallRefused(STATUS[error.reason], str(error)) from None
            except Exception:
                logger.exception("a change of adapters failed")
                raise CallRefused(grpc.StatusCode.INTERNAL, "internal error") from None
            if self._record is not None:
                self._record.write(self._engine)
            self._changed(self.served)
            return result
