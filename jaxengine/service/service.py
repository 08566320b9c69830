"""The gRPC face of an engine: sessions of gateways on one side, the step loop on the other.

It answers from the moment the socket is open: `Describe` tells how far loading is, and a session opened before the
engine is ready is refused. Request ids are a session's own business; inside the engine they are drawn from one counter,
so gateways cannot collide.

Where steps are computed by the CPU, and may be slow, the service speaks for a step loop that is silent while the
process computes, for a while.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from jaxengine.request.interface import DrivenEngine
from jaxengine.request.sequence import Event, FinishReason
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.engine_pb2_grpc import EngineServicer
from jaxengine.service import codec
from jaxengine.service.cpu_liveness import CpuLiveness
from jaxengine.service.deadlines import Deadlines
from jaxengine.service.request_trace import RequestTrace
from jaxengine.service.session import GatewaySession
from jaxengine.service.step_loop import HEARTBEAT_SECONDS, Report, StepLoop
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

SLOW_STEP_SECONDS = 600.0  # a step that takes longer is stuck, whatever it does


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a request is, its id there, and its spans."""

    peer: GatewaySession
    request_id: int
    trace: RequestTrace


class Service(EngineServicer):
    """`Describe` and `Session` of `engine.proto`. Lives on the event loop it is created in.

    Args:
        description: what is known so far; updated in place while the engine loads.
        crashed: told when a step failed beyond repair.
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
        self._deadlines = Deadlines(self._is_queued, self._expire)
        self._given_up: set[int] = set()  # at their deadlines; of each one more event will come, its last
        self._vouching: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._owners: dict[int, Owner] = {}  # by the engine's id
        self._peers: set[GatewaySession] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, engine: DrivenEngine) -> None:
        """Start stepping a loaded engine; from now on sessions are taken."""
        codec.describe(self.description, engine.description)
        self._steps = StepLoop(engine, self._publish, self._fail)
        self._steps.start()
        if engine.steps_on_host:
            self._vouching = asyncio.create_task(self._vouch(self._steps))
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
        """End every session and the step loop; whether its last step ended within `timeout` seconds."""
        if self._vouching is not None:
            self._vouching.cancel()
        for peer in self._peers:
            peer.close()
        return self._steps is None or self._steps.stop(timeout)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        return self.description

    async def Session(self, request_iterator: AsyncIterator[pb.Command], context: Any) -> AsyncIterator[pb.StepEvents]:
        if self._steps is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not ready: {self.description.progress}")
        peer = GatewaySession()
        peer.wake()  # a first message at once: the gateway knows that it is heard
        self._peers.add(peer)
        reader = asyncio.create_task(self._read(peer, request_iterator))
        reader.add_done_callback(lambda _: peer.close())
        try:
            while (message := await peer.take()) is not None:
                yield message
            if reader.done() and isinstance(error := reader.exception(), ValueError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            reader.cancel()
            self._peers.discard(peer)
            self._cancel(list(peer.numbers.values()))

    async def _read(self, peer: GatewaySession, commands: AsyncIterator[pb.Command]) -> None:
        """Obey commands until the gateway closes its side. Raises ValueError if it breaks the protocol."""
        async for command in commands:
            kind = command.WhichOneof("kind")
            if kind == "generate":
                self._submit(peer, command.generate)
            elif kind == "cancel":
                number = peer.numbers.get(command.cancel.id)
                self._cancel([] if number is None else [number])
            else:
                raise ValueError("a command must generate or cancel")

    def _submit(self, peer: GatewaySession, message: pb.Generate) -> None:
        if message.id in peer.numbers:
            raise ValueError(f"request id {message.id} is already running")
        if self.description.state != pb.READY:
            self._refuse(peer, message.id, FinishReason.ERROR, "the engine is shutting down")
            return
        number = next(self._numbers)
        self._adopt(peer, message, number)
        try:
            assert self._steps is not None
            request = codec.request_from(message, number)
            self._steps.submit(request)
            self._deadlines.watch(request)
        except ValueError as error:
            self._release(number)
            self._refuse(peer, message.id, FinishReason.INVALID, str(error))

    def _refuse(self, peer: GatewaySession, request_id: int, finish: FinishReason, error: str) -> None:
        peer.put(request_id, Event(request_id, finish=finish, error=error))
        peer.wake()

    def _adopt(self, peer: GatewaySession, message: pb.Generate, number: int) -> None:
        peer.numbers[message.id] = number
        self._owners[number] = Owner(peer, message.id, RequestTrace(self._tracing, message.traceparent))
        self._idle.clear()

    def _release(self, number: int) -> None:
        owner = self._owners.pop(number)
        del owner.peer.numbers[owner.request_id]
        owner.trace.end()
        self._deadlines.forget(number)
        if not self._owners:
            self._idle.set()

    def _cancel(self, numbers: list[int]) -> None:
        assert self._steps is not None
        for number in numbers:
            self._steps.cancel(number)

    def _is_queued(self, number: int) -> bool:
        assert self._steps is not None
        return self._steps.is_queued(number)

    def _expire(self, number: int, reason: FinishReason) -> None:
        """End a request whose deadline passed during a step; the engine hears of it after that."""
        owner, event = self._owners[number], Event(number, finish=reason)
        owner.peer.put(owner.request_id, event)
        owner.peer.wake()
        owner.trace.note(event)
        self._given_up.add(number)
        self._release(number)
        self._cancel([number])

    async def _vouch(self, steps: StepLoop) -> None:
        """Send a sign of life while the step loop is silent and the process computes."""
        meter = CpuLiveness()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if meter.at_work() and HEARTBEAT_SECONDS < steps.silence < SLOW_STEP_SECONDS:
                for peer in self._peers:
                    peer.wake()

    def _publish(self, report: Report) -> None:
        """On the step thread: hand over to the event loop, once per step."""
        with contextlib.suppress(RuntimeError):  # the event loop closed: the process is on its way out
            self._event_loop.call_soon_threadsafe(self._distribute, report)

    def _distribute(self, report: Report) -> None:
        for event in report.result.events if report.result is not None else ():
            self._pass_on(event)
        stats = codec.stats_to(report.stats, report.result)
        for peer in self._peers:
            peer.flush(report.stats.steps, stats)

    def _pass_on(self, event: Event) -> None:
        owner = self._owners.get(event.request_id)
        if event.request_id in self._given_up:
            if event.finish:
                self._given_up.discard(event.request_id)
            return
        if owner is None:
            logger.error("the engine reported on request %d, which is not running", event.request_id)
            return
        owner.peer.put(owner.request_id, event)
        owner.trace.note(event)
        if event.finish:
            self._release(event.request_id)

    def _fail(self, error: BaseException) -> None:
        logger.critical("a step failed beyond repair", exc_info=error)
        self._event_loop.call_soon_threadsafe(self._crashed.set_exception, RuntimeError("a step failed beyond repair"))
