"""The gRPC service of an engine: sessions of gateways on one side, the step loop on the other.

The service answers from the moment the socket is open: `Describe` tells how far loading is, and a session opened before
the engine is ready is refused. A gateway chooses request ids that are unique within its session; inside the engine, ids
come from one counter, so two gateways cannot collide.

Where the CPU computes steps, a step may be slow. The service then sends a sign of life in place of the silent step loop
as long as the process computes, up to `SLOW_STEP_SECONDS`.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from jaxengine.request.cached_pages import CachedPages
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.interface import DrivenEngine
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.engine_pb2_grpc import EngineServicer
from jaxengine.service import codec
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.service.adapters import Adapters, CallRefused
from jaxengine.service.cached_pages import KnownPages, UntoldPages
from jaxengine.service.cpu_liveness import CpuLiveness
from jaxengine.service.deadlines import Deadlines
from jaxengine.service.request_trace import RequestTrace
from jaxengine.service.session import GatewaySession
from jaxengine.service.step_loop import HEARTBEAT_SECONDS, Report, StepLoop
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

SLOW_STEP_SECONDS = 600.0  # a step that takes longer counts as stuck, even if the process computes


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """The session that a request belongs to, its id in that session, and its spans."""

    session: GatewaySession
    session_id: int
    trace: RequestTrace


class Service(EngineServicer):
    """The calls of `engine.proto`; listens to the step loop. Lives on the event loop it is created in.

    Args:
        description: what is known of the engine so far; updated in place while the engine loads.
        crashed: receives an exception when the step loop has crashed.
        tracing: where a span for each request goes.
    """

    def __init__(
        self, description: pb.Description, crashed: asyncio.Future[None], tracing: Tracing | None = None
    ) -> None:
        self.description = description
        self._crashed = crashed
        self._tracing = tracing or Tracing()
        self._event_loop = asyncio.get_running_loop()
        self._steps: StepLoop | None = None
        self._adapters: Adapters | None = None
        self._liveness: asyncio.Task[None] | None = None
        self._deadlines = Deadlines(self._is_queued, self._expire)
        self._ids = itertools.count(1)
        self._running: dict[int, RunningRequest] = {}  # by the engine's id
        self._expired: set[int] = set()  # ended by `_expire`; the engine has yet to report their last event
        self._sessions: set[GatewaySession] = set()
        self._pages = KnownPages()
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, engine: DrivenEngine, record: AdapterRecord | None = None) -> None:
        """Start stepping a loaded engine, and accept sessions from now on. Adapters are noted in `record`."""
        codec.describe(self.description, engine.description)
        self._adapters = Adapters(engine, self._announce, record)
        self._steps = StepLoop(engine, self)
        self._steps.start()
        if engine.steps_on_host:
            self._liveness = asyncio.create_task(self._report_liveness(self._steps))
        self.description.state = pb.READY
        self.description.progress = "ready"

    async def drain(self, deadline: float) -> bool:
        """Refuse new requests and wait for the running ones; whether all finished within `deadline` seconds."""
        self.description.state = pb.DRAINING
        self.description.progress = "draining"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), deadline)
        return self._idle.is_set()

    def stop(self, timeout: float) -> bool:
        """End every session and the step loop; whether the loop's last step ended within `timeout` seconds."""
        if self._liveness is not None:
            self._liveness.cancel()
        if self._adapters is not None:
            self._adapters.stop()
        for session in self._sessions:
            session.close()
        return self._steps is None or self._steps.stop(timeout)

    # --- calls of a gateway ---------------------------------------------------------------------------------------

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        return self.description

    async def Session(self, request_iterator: AsyncIterator[pb.Command], context: Any) -> AsyncIterator[pb.StepEvents]:
        adapters = await self._ready(context)
        session = GatewaySession(UntoldPages(self._pages) if self.description.prefix_cache else None)
        session.announce(adapters.served)  # at once: the gateway knows that the session is open
        self._sessions.add(session)
        reader = asyncio.create_task(self._read(session, request_iterator))
        reader.add_done_callback(lambda _: session.close())
        try:
            while (message := await session.take()) is not None:
                yield message
            if reader.done() and isinstance(error := reader.exception(), ValueError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            reader.cancel()
            self._sessions.discard(session)
            self._cancel(list(session.engine_ids.values()))

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Any) -> pb.Adapter:
        adapters = await self._ready(context)
        if self.description.state != pb.READY:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is shutting down")
        try:
            return await adapters.load(request.name, request.path, in_place=request.in_place)
        except CallRefused as refused:
            return await context.abort(refused.status, str(refused))

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Any) -> pb.UnloadAdapterResponse:
        adapters = await self._ready(context)
        try:
            await adapters.unload(request.name)
        except CallRefused as refused:
            await context.abort(refused.status, str(refused))
        return pb.UnloadAdapterResponse()

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Any) -> pb.AdapterList:
        return (await self._ready(context)).served

    async def _ready(self, context: Any) -> Adapters:
        """The adapters of the engine; ends the call if it is still being loaded."""
        if self._adapters is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not ready: {self.description.progress}")
        assert self._adapters is not None
        return self._adapters

    def _announce(self, adapters: pb.AdapterList) -> None:
        for session in self._sessions:
            session.announce(adapters)

    async def _read(self, session: GatewaySession, commands: AsyncIterator[pb.Command]) -> None:
        """Carry out commands until the gateway closes its side. Raises ValueError if one breaks the protocol."""
        async for command in commands:
            kind = command.WhichOneof("kind")
            if kind == "generate":
                self._submit(session, command.generate)
            elif kind == "cancel":
                engine_id = session.engine_ids.get(command.cancel.id)
                self._cancel([] if engine_id is None else [engine_id])
            else:
                raise ValueError("a command must generate or cancel")

    def _submit(self, session: GatewaySession, message: pb.Generate) -> None:
        if message.id in session.engine_ids:
            raise ValueError(f"request id {message.id} is already running")
        if self.description.state != pb.READY:
            self._refuse(session, message.id, FinishReason.CANCELLED, "the engine is shutting down")
            return
        engine_id = next(self._ids)
        self._register(session, message, engine_id)
        try:
            assert self._steps is not None
            request = codec.request_from(message, engine_id)
            self._steps.submit(request)
            self._deadlines.watch(request)
        except ValueError as error:
            self._release(engine_id)
            self._refuse(session, message.id, FinishReason.INVALID, str(error))
        except Exception:  # the session, and all other requests of it, would end
            logger.exception("a request could not be taken")
            self._release(engine_id)
            self._refuse(session, message.id, FinishReason.ERROR, "internal error")

    def _refuse(self, session: GatewaySession, session_id: int, finish: FinishReason, error: str) -> None:
        session.put(session_id, Event(session_id, finish=finish, error=error))
        session.wake()

    def _register(self, session: GatewaySession, message: pb.Generate, engine_id: int) -> None:
        session.engine_ids[message.id] = engine_id
        trace = RequestTrace(self._tracing, message.traceparent)
        self._running[engine_id] = RunningRequest(session, message.id, trace)
        self._idle.clear()

    def _release(self, engine_id: int) -> None:
        request = self._running.pop(engine_id)
        del request.session.engine_ids[request.session_id]
        request.trace.end()
        self._deadlines.forget(engine_id)
        if not self._running:
            self._idle.set()

    def _cancel(self, engine_ids: list[int]) -> None:
        assert self._steps is not None
        for engine_id in engine_ids:
            self._steps.cancel(engine_id)

    # --- deadlines and liveness -----------------------------------------------------------------------------------

    def _is_queued(self, engine_id: int) -> bool:
        assert self._steps is not None
        return self._steps.is_queued(engine_id)

    def _expire(self, engine_id: int, reason: FinishReason) -> None:
        """End a request whose deadline passed during a step. The engine cancels it when that step is over."""
        request, event = self._running[engine_id], Event(engine_id, finish=reason)
        request.session.put(request.session_id, event)
        request.session.wake()
        request.trace.note(event)
        self._expired.add(engine_id)
        self._release(engine_id)
        self._cancel([engine_id])

    async def _report_liveness(self, steps: StepLoop) -> None:
        """Send an empty message every `HEARTBEAT_SECONDS` while the step loop is silent and the process computes."""
        liveness = CpuLiveness()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if liveness.is_computing() and HEARTBEAT_SECONDS < steps.silence < SLOW_STEP_SECONDS:
                for session in self._sessions:
                    session.wake()

    # --- reports of the step loop, on its thread ------------------------------------------------------------------

    def on_report(self, report: Report) -> None:
        """Hand a report over to the event loop, once per step."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the process is ending
            self._event_loop.call_soon_threadsafe(self._distribute, report)

    def on_crash(self, error: BaseException) -> None:
        logger.critical("a step failed beyond repair", exc_info=error)
        self._event_loop.call_soon_threadsafe(self._crashed.set_exception, RuntimeError("a step failed beyond repair"))

    # --- and from there on the event loop -------------------------------------------------------------------------

    def _distribute(self, report: Report) -> None:
        """Forward the step's events to their sessions, and let every session send."""
        for event in report.result.events if report.result is not None else ():
            self._forward(event)
        if report.result is not None and report.result.pages is not None:
            self._note_pages(report.result.pages)
        stats = codec.stats_to(report.stats, report.result)
        for session in self._sessions:
            session.flush(report.stats.steps, stats)

    def _note_pages(self, change: CachedPages) -> None:
        self._pages.note(change)
        for session in self._sessions:
            if session.pages is not None:
                session.pages.note(change)

    def _forward(self, event: Event) -> None:
        if event.request_id in self._expired:
            if event.finish:
                self._expired.discard(event.request_id)
            return
        request = self._running.get(event.request_id)
        if request is None:
            logger.error("the engine reported on request %d, which is not running", event.request_id)
            return
        request.session.put(request.session_id, event)
        request.trace.note(event)
        if event.finish:
            self._release(event.request_id)
