"""Several engines as one, or one that may die: what routes see is `Replicas`, whatever becomes of each engine.

A request is sent to the replica that can answer it soonest (`gateway.engine.routing`). If that replica dies, hangs or
is stopped, the request goes on with another one, or with the same once it is back, until its own deadline: from its
token ids, of which every next one depends on (seed, position) only. So its client sees a pause and not a seam.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from gateway.engine.client import EngineClient
from gateway.engine.interface import EngineLost, EngineUnavailable, ReplicaStatus
from gateway.engine.journey import Journey
from gateway.engine.listener import EngineListener
from gateway.engine.replica import Replica, Turn
from gateway.engine.replica_adapters import ReplicaAdapters
from gateway.engine.routing import Choice, Keys, Reason, choose
from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.page_keys import cache_name, root_key, short_keys, whole_key

logger = logging.getLogger(__name__)

FATAL = "the engine died again and again while it worked on this request"


class RouteListener(Protocol):
    """What `Replicas` tells about where requests go."""

    def request_routed(self, engine: int, reason: Reason, cached_tokens: int) -> None:
        """A request was sent to a replica, where so many tokens of its text are known to be cached."""

    def request_moved(self, cause: Literal["lost", "drained"]) -> None:
        """A request goes on elsewhere: its replica was lost, or is to stop."""


class Replicas(EngineListener):
    """The engines behind `sockets`, which serve the same model.

    Args:
        token: of this boot.
        resume: whether requests outlive an engine that dies. One that is to stop they always do.
        turn: what the operator wants of a replica, by its number.
        hang_limit, prepare: see `EngineClient`.
        listeners: told what becomes of each engine, after this object has taken note.
        routes: told where requests go.
    """

    def __init__(
        self,
        sockets: Sequence[Path],
        token: str,
        *,
        resume: bool = True,
        turn: Callable[[int], Turn] = lambda _: Turn.OPEN,
        hang_limit: float = 30.0,
        prepare: Callable[[pb.Description], Awaitable[None]] | None = None,
        listeners: Sequence[EngineListener] = (),
        routes: RouteListener | None = None,
    ) -> None:
        self._resume, self._routes = resume, routes
        self._clients: list[EngineClient] = []
        self.adapters = ReplicaAdapters(self._clients)
        self._clients += (
            EngineClient(
                path,
                token,
                number=number,
                hang_limit=hang_limit,
                prepare=prepare,
                align=partial(self.adapters.align, number),
                listeners=(self, *listeners),
            )
            for number, path in enumerate(sockets)
        )
        self._replicas = [Replica(each, partial(turn, each.number)) for each in self._clients]
        self._changed = asyncio.Event()  # replaced whenever a replica may have become able to take requests
        self._waiting = 0  # requests that wait for this
        self._suspects = asyncio.Lock()  # held by the one that is tried
        self._closed: str | None = None

    @property
    def description(self) -> pb.Description | None:
        """Of the engines that are ready, that with the least room; else of the first that has answered."""
        ready = [each.description for each in self._clients if each.ready and each.description is not None]
        if ready:
            return min(ready, key=lambda description: description.max_total_tokens)
        return next((each.description for each in self._clients if each.description is not None), None)

    @property
    def ready(self) -> bool:
        return any(each.open for each in self._replicas)

    @property
    def retry_after(self) -> int:
        return min(each.retry_after for each in self._clients)

    @property
    def replicas(self) -> list[ReplicaStatus]:
        return [each.status for each in self._replicas]

    def last_step_age(self, number: int) -> float:
        return self._clients[number].last_step_age

    async def run(self) -> None:
        """Stay connected to all engines until cancelled or closed."""
        tasks = [asyncio.create_task(client.run()) for client in self._clients]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def close(self, reason: str) -> None:
        """End what is running with `EngineUnavailable(reason)` and take nothing new."""
        self._closed = reason
        for client in self._clients:
            client.close(reason)
        self._wake()

    async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        """See `Engine.generate`."""
        journey = Journey(request)
        while True:
            async with AsyncExitStack() as stack:
                try:
                    replica = await self._next(journey, stack)
                except TimeoutError:
                    yield pb.RequestEvent(finish=journey.expiry)
                    return
                try:
                    async with aclosing(replica.client.generate(journey.request())) as events:
                        async for event in events:
                            noted = journey.note(event)
                            if not journey.suspect:
                                await stack.aclose()
                            yield noted
                    return
                except EngineLost:
                    if self._closed is not None:
                        raise
                    self._move(journey, replica)

    async def _next(self, journey: Journey, until_answered: AsyncExitStack) -> Replica:
        """Where the request goes next. Of requests that engines may die of, one at a time is tried, until it is no
        longer suspect or has ended: if its engine dies too, it is this one.

        Raises:
            EngineUnavailable: none takes new requests, or all are closed.
            TimeoutError: a deadline passed.
        """
        async with asyncio.timeout(journey.time_left):
            if journey.suspect:
                await until_answered.enter_async_context(self._suspects)
            candidates = await self._candidates(journey)
        choice = self._choose(journey, candidates)
        replica = self._replicas[choice.number]
        journey.adapter_digest = replica.adapter_digest(journey.adapter)
        replica.picked(journey.length - choice.cached_tokens)
        until_answered.enter_context(replica.promise(choice.promised))
        if self._routes is not None:
            reason = "moved" if journey.moved else choice.reason
            self._routes.request_routed(choice.number, reason, choice.cached_tokens)
        return replica

    async def _candidates(self, journey: Journey) -> list[Replica]:
        """The replicas that can take the request. One that has been on an engine waits for them, a new one does not."""
        while not (found := self._open_to(journey)):
            if self._closed is not None or not journey.moved:
                raise EngineUnavailable(self._closed or "the engine is not ready", self.retry_after)
            await self._change()
        return found

    async def _change(self) -> None:
        """Wait until a replica may take requests."""
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    def _open_to(self, journey: Journey) -> list[Replica]:
        """The replicas that take requests and have the request's adapter; preferably such as were not lost with it."""
        found = [each for each in self._replicas if each.open]
        if journey.adapter and found:
            found = self._with_adapter(journey, found)
        return [each for each in found if each.number not in journey.visited] or found

    def _with_adapter(self, journey: Journey, replicas: list[Replica]) -> list[Replica]:
        """Those that have the request's adapter, as it was when the answer began. If none has it, a new request goes
        anywhere: the engine will say so. Raises RequestError for one that was begun.
        """
        digests = {each.number: each.adapter_digest(journey.adapter) for each in replicas}
        if journey.generated:
            found = [each for each in replicas if digests[each.number] == journey.adapter_digest]
            if not found:
                raise RequestError(Kind.GENERATION, f"adapter {journey.adapter!r} has changed since the answer began")
            return found
        return [each for each in replicas if digests[each.number] is not None] or replicas

    def _choose(self, journey: Journey, candidates: Sequence[Replica]) -> Choice:
        if len(candidates) == 1:
            return Choice(candidates[0].number, "load")
        description = candidates[0].client.description or pb.Description()
        name = cache_name(description.model_id, description.revision)
        root = root_key(name, journey.salt, candidates[0].adapter_digest(journey.adapter) or b"")
        if description.image_horizon == "prompt":
            root = whole_key(root, journey.prompt, journey.images)
        size = max(1, description.page_size)
        return choose(candidates, Keys(journey.length, size, short_keys(root, journey.ids, size, journey.images)))

    def _move(self, journey: Journey, replica: Replica) -> None:
        """The request's engine is gone.

        Raises:
            EngineLost: requests do not outlive their engines here, unless that is to stop.
            RequestError: the engine seems to have died of the request.
        """
        drained = replica.turn is not Turn.OPEN
        if not (self._resume or drained):
            raise EngineLost("the engine stopped", self.retry_after)
        if journey.deadly and not drained:
            logger.error("a request is given up, of which engines seem to die")
            raise RequestError(Kind.GENERATION, FATAL)
        journey.lost(replica.number, died=not drained)
        if self._routes is not None:
            self._routes.request_moved("drained" if drained else "lost")

    # --- what becomes of the engines ------------------------------------------------------------------------------

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        self._wake()

    def engine_step(self, engine: int, step: pb.StepEvents) -> None:
        replica = self._replicas[engine]
        replica.reported(step)
        if replica.turn is Turn.CLEARED:
            replica.client.let_go()
        elif self._waiting:  # the operator may have opened it
            self._wake()

    def engine_lost(self, engine: int) -> None:
        self._replicas[engine].lost()

    def _wake(self) -> None:
        """Have requests that wait for a replica look again."""
        self._changed.set()
        self._changed = asyncio.Event()
