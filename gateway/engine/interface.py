"""What routes need of the engines: the interface, and the errors when there is none."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb


class EngineUnavailable(RequestError):
    """The engine is not ready, or it went away while this request ran."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(Kind.UNAVAILABLE, reason, retry_after=retry_after)


class EngineLost(EngineUnavailable):
    """The engine went away while this request ran; another one could go on with it."""


ReplicaState = Literal["starting", "ready", "draining", "lost"]


@dataclass(frozen=True)
class ReplicaStatus:
    """One of several engines, as a process that speaks HTTP sees it.

    state: "lost" if it has been ready and is not; "draining" if it takes no new requests.
    devices: how many it is split over, and of what kind.
    kv: share of its pages that requests hold, 0 to 1.
    """

    index: int
    state: ReplicaState
    devices: str
    waiting: int
    running: int
    kv: float


class Operations(Protocol):
    """What an operator may do to replicas. Each call begins something and returns; a later one takes its place."""

    def drain(self, number: int) -> None:
        """Have a replica take no new requests. After the grace time what still runs there moves to others."""
        ...

    def undrain(self, number: int) -> None:
        """Have a replica take requests again, whatever was begun with it."""
        ...

    def restart(self, number: int) -> None:
        """Drain a replica, start its engine anew, and open it again unless it was drained. Raises ValueError, with the
        reason, if its engine has been given up.
        """
        ...

    def restart_all(self) -> None:
        """Restart the replicas one after another, each while another one takes requests. Raises ValueError, with the
        reason, if that is being done already, or no other one ever will.
        """
        ...


class Adapters(Protocol):
    """The adapters of an engine. Each call raises EngineUnavailable when there is no engine."""

    @property
    def served(self) -> Mapping[str, pb.Adapter]:
        """Those that requests may name, by name, in the order in which they were loaded, as the engine last said."""
        ...

    async def refresh(self) -> None:
        """Ask the engine: another process may have changed them a moment ago."""
        ...

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Have the adapter at `path` served as `name`, instead of the one of that name if `in_place`.

        Raises:
            RequestError: it cannot be; MODEL_NOT_FOUND where there is none at `path`. The message is the engine's.
        """
        ...

    async def unload(self, name: str) -> None:
        """Have `name` served no more. Raises RequestError, MODEL_NOT_FOUND, if it is not."""
        ...


class Engine(Protocol):
    """What answers requests: `Replicas`, or a fake in tests."""

    @property
    def description(self) -> pb.Description | None:
        """The engine's latest description of itself; None before it first answered."""
        ...

    @property
    def ready(self) -> bool:
        """Whether requests can be sent."""
        ...

    @property
    def retry_after(self) -> int:
        """Seconds after which an engine that is not ready may be ready: the `retry-after` of a 503."""
        ...

    @property
    def adapters(self) -> Adapters: ...

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The engines behind this one, in their order."""
        ...

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        """Events of one request until its last; closing the iterator cancels the request.

        Raises:
            EngineUnavailable: no engine can take the request, or go on with it.
            RequestError: engines die of it.
        """
        ...
