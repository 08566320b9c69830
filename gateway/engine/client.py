"""The gateway's end of the wire to one engine process: connect, submit, stream, cancel, notice silence.

A request handed to `generate` ends in exactly one of three ways: its last event, `EngineLost`, or the caller
closing the iterator, which cancels it. A request never hangs on a dead engine: the stream of a killed process ends
within milliseconds, and an engine that stops sending heartbeats is given up after `hang_limit`.

The client retries nothing: `Replicas` does, which knows of other engines and of what has been answered already.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from gateway.engine.adapters import EngineAdapters
from gateway.engine.event_buffer import EventBuffer
from gateway.engine.interface import EngineLost, EngineUnavailable
from gateway.engine.listener import EngineListener
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.engine_pb2_grpc import EngineStub

logger = logging.getLogger(__name__)

DESCRIBE_SECONDS = 0.2  # between looks at an engine that is not ready
DESCRIBE_TIMEOUT = 5.0
SILENCE_TICKS = 10  # silence is counted in tenths of the hang limit: a stalled gateway counts one, not all of them


class EngineClient:
    """One engine behind a Unix socket.

    Args:
        path: its socket.
        token: of this boot.
        hang_limit: seconds of silence after which a connected engine is taken for stuck.
        number: of the engine, which listeners are told.
        prepare: awaited with the description of an engine that came up, before it counts as ready.
        align: awaited after that, when its adapters can be changed.
        listeners: told what becomes of the engine, in this order.
    """

    def __init__(
        self,
        path: Path,
        token: str,
        *,
        number: int = 0,
        hang_limit: float = 30.0,
        prepare: Callable[[pb.Description], Awaitable[None]] | None = None,
        align: Callable[[], Awaitable[None]] | None = None,
        listeners: Sequence[EngineListener] = (),
    ) -> None:
        self._address = transport.address(path)
        self._credentials = transport.credentials(token)
        self.number = number
        self._hang_limit = hang_limit
        self._prepare, self._align = prepare, align
        self._listeners = tuple(listeners)
        self.description: pb.Description | None = None  # as last received
        self.stats = pb.Stats()  # likewise, while it is connected
        self.adapters = EngineAdapters(self._credentials, lambda: self.retry_after)
        self._ids = itertools.count(1)
        self._buffers: dict[int, EventBuffer] = {}
        self._commands: asyncio.Queue[pb.Command] | None = None  # of the session that is open, if one is
        self._leaving = False  # the engine behind it takes no new requests any more
        self._last_sign = time.monotonic()
        self._began = time.monotonic()
        self._start_seconds: float | None = None
        self._closed: str | None = None

    @property
    def ready(self) -> bool:
        return self._commands is not None and not self._leaving

    @property
    def last_step_age(self) -> float:
        """Seconds since the step loop last showed life; 0 while no engine is connected."""
        return time.monotonic() - self._last_sign if self.ready else 0.0

    @property
    def retry_after(self) -> int:
        """Seconds that the engine's last start took, within 1 … 60; 10 before the first start is over."""
        if self._start_seconds is None:
            return 10
        return min(60, max(1, round(self._start_seconds)))

    async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        """Yield a request's events until its last. The client chooses the id and ignores `request.id`.

        Raises:
            EngineUnavailable: there is no engine, or `close` was called.
            EngineLost: it went away before the last event, or is about to, or `let_go` was called.
        """
        commands = self._commands
        if commands is None:
            raise EngineUnavailable(self._closed or "the engine is not ready", self.retry_after)
        command = pb.Command()
        command.generate.CopyFrom(request)  # given to the constructor, images would be written and read again
        number = command.generate.id = next(self._ids)
        buffer = self._buffers[number] = EventBuffer()
        commands.put_nowait(command)
        del command  # images make it large, and it is sent once
        finished = False
        try:
            while not finished:
                event = await buffer.take()
                finished = event.finish != pb.NOT_FINISHED
                yield event
        finally:
            del self._buffers[number]
            if not finished and commands is self._commands:
                commands.put_nowait(pb.Command(cancel=pb.Cancel(id=number)))

    def close(self, reason: str) -> None:
        """End what is running with `EngineUnavailable(reason)` and take nothing new."""
        self._closed = reason
        self._fail(EngineUnavailable(reason, self.retry_after))
        self._disconnect()

    def let_go(self) -> None:
        """End what is running with `EngineLost`, and cancel it in the engine."""
        self._fail(EngineLost("the engine is to stop", self.retry_after))

    async def run(self) -> None:
        """Stay connected, through restarts of the engine, until cancelled or closed."""
        refused = False
        while self._closed is None:
            try:
                async with grpc.aio.insecure_channel(self._address, options=transport.CHANNEL_OPTIONS) as channel:
                    stub = EngineStub(channel)
                    await self._await_ready(stub)
                    self.adapters.connect(stub)
                    if self._align is not None:
                        await self._align()
                    await self._session(stub)
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED and not refused:
                    refused = True
                    logger.error("the engine refuses this gateway: %s", error.details())
            finally:
                self._fail(EngineLost("the engine stopped", self.retry_after))
                self._disconnect()
            await asyncio.sleep(DESCRIBE_SECONDS)

    async def _await_ready(self, stub: Any) -> None:
        while True:
            description = await stub.Describe(
                pb.DescribeRequest(), metadata=self._credentials, timeout=DESCRIBE_TIMEOUT
            )
            if description != self.description:
                self.description = description
                for listener in self._listeners:
                    listener.engine_progress(self.number, description)
            if description.state == pb.READY:
                break
            await asyncio.sleep(DESCRIBE_SECONDS)
        if self._prepare is not None:
            await self._prepare(description)

    async def _session(self, stub: Any) -> None:
        """Serve requests over one stream until it ends or falls silent."""
        commands: asyncio.Queue[pb.Command] = asyncio.Queue()
        call = stub.Session(metadata=self._credentials)
        helpers = [asyncio.create_task(_send(call, commands)), asyncio.create_task(self._watch(call))]
        try:
            async for step in call:
                if self._commands is None and self._closed is None:
                    self._connect(commands)
                self._deliver(step)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this task is cancelled, not only the call, which `_watch` cancels
                raise
        finally:
            call.cancel()
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)

    def _connect(self, commands: asyncio.Queue[pb.Command]) -> None:
        self._commands, self._leaving = commands, False
        self._start_seconds = time.monotonic() - self._began
        assert self.description is not None, "a session before the engine was described"
        for listener in self._listeners:
            listener.engine_ready(self.number, self.description)

    def _fail(self, failure: EngineUnavailable) -> None:
        for buffer in self._buffers.values():
            buffer.fail(failure)

    def _disconnect(self) -> None:
        lost, self._commands = self._commands is not None, None
        self.stats = pb.Stats()
        self.adapters.connect(None)
        if lost:
            self._began = time.monotonic()
            for listener in self._listeners:
                listener.engine_lost(self.number)

    def _deliver(self, step: pb.StepEvents) -> None:
        # Events without statistics are no sign of life: deadlines end requests even while a step is stuck.
        if step.HasField("stats") or not step.events:
            self._last_sign = time.monotonic()
        if step.HasField("stats"):
            self.stats = step.stats
        if step.HasField("adapters"):
            self.adapters.told(step.adapters)
        for event in step.events:
            buffer = self._buffers.get(event.id)
            if buffer is None:  # its reader has closed the iterator
                continue
            if event.finish == pb.CANCELLED:  # not by us: somebody has told the engine to end
                self._leaving = True
                buffer.fail(EngineLost(event.error, self.retry_after))
            else:
                buffer.put(event)
        for listener in self._listeners:
            listener.engine_step(self.number, step)

    async def _watch(self, call: Any) -> None:
        """Cancel `call` when the step loop has shown no life for the hang limit."""
        silent, last = 0, self._last_sign
        while silent < SILENCE_TICKS:
            await asyncio.sleep(self._hang_limit / SILENCE_TICKS)
            silent, last = (silent + 1, last) if last == self._last_sign else (0, self._last_sign)
        logger.error("the engine has been silent for %g s", self._hang_limit)
        for listener in self._listeners:
            listener.engine_hung(self.number)
        call.cancel()


async def _send(call: Any, commands: asyncio.Queue[pb.Command]) -> None:
    """Write commands for as long as the call lives. Its end is reported by `_session`, which reads from it."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await commands.get())
