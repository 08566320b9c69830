"""The mock engine without a process: a stand-in for `EngineClient`."""

import itertools
from collections.abc import AsyncGenerator, Callable

from gateway.engine.interface import EngineUnavailable, ReplicaStatus
from gateway.errors import Kind, RequestError
from jaxengine.request.interface import AdapterRefused
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service import codec
from tests.engine_mock import Live, MockEngine, MockOptions

REASONS = {"missing": Kind.MODEL_NOT_FOUND}


class FakeAdapters:
    """The mock's adapters. `served` is what the gateway was told, which `refresh` brings up to date."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine
        self._told = codec.adapters_to(engine.adapters())
        self.refreshes = 0

    @property
    def served(self) -> dict[str, pb.Adapter]:
        return {adapter.name: adapter for adapter in self._told.adapters}

    async def refresh(self) -> None:
        self.refreshes += 1
        self._told = codec.adapters_to(self._engine.adapters())

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        self._change(lambda: self._engine.load_adapter(name, path, in_place=in_place))
        await self.refresh()

    async def unload(self, name: str) -> None:
        self._change(lambda: self._engine.unload_adapter(name))
        await self.refresh()

    def _change(self, work: Callable[[], object]) -> None:
        try:
            work()
        except AdapterRefused as error:
            raise RequestError(REASONS.get(error.reason, Kind.INVALID), str(error)) from None


class FakeEngineClient:
    """`gateway.engine.interface.Engine` in the routes' own process, without a socket.

    unavailable: the reason with which it refuses requests or, with `die_after`, ends streams.
    die_after: the number of events after which a stream ends.
    requests: all requests so far.
    open: the number of streams that have not ended.
    cancelled: ids of the streams that were closed early.
    """

    def __init__(self, options: MockOptions | None = None) -> None:
        self._engine = self.mock = MockEngine(options or MockOptions())
        self.description: pb.Description | None = pb.Description(
            state=pb.READY, model_dir=str(self._engine.options.model_dir)
        )
        codec.describe(self.description, self._engine.description)
        self.adapters = FakeAdapters(self._engine)
        self.replicas: list[ReplicaStatus] = []
        self.retry_after = 5
        self.ready = True
        self.unavailable: str | None = None
        self.die_after: int | None = None
        self.requests: list[pb.Generate] = []
        self.cancelled: list[int] = []
        self.open = 0
        self._numbers = itertools.count(1)

    async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        if self.unavailable is not None and self.die_after is None:
            raise EngineUnavailable(self.unavailable, self.retry_after)
        self.requests.append(request)
        number = next(self._numbers)
        finished = False
        self.open += 1
        try:
            row = self._admit(request, number)
            if isinstance(row, pb.RequestEvent):
                finished = True
                yield row
                return
            for count in itertools.count():
                if self.die_after is not None and count >= self.die_after:
                    raise EngineUnavailable(self.unavailable or "the engine stopped", self.retry_after)
                event = pb.RequestEvent(id=number)
                codec.add_event(event, self._engine.advance(row))
                finished = event.finish != pb.NOT_FINISHED
                yield event
                if finished:
                    return
        finally:
            self.open -= 1
            if not finished:
                self.cancelled.append(number)

    def _admit(self, request: pb.Generate, number: int) -> Live | pb.RequestEvent:
        try:
            accepted = codec.request_from(request, number)
            self._engine.submit(accepted)
        except ValueError as error:
            return pb.RequestEvent(id=number, finish=pb.INVALID, error=str(error))
        self._engine.cancel(number)
        return self._engine.live(accepted)
