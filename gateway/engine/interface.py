"""What routes need of an engine: the interface, and the error when there is no engine."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb


class EngineUnavailable(RequestError):
    """The engine is not ready, or it went away while this request ran."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(Kind.UNAVAILABLE, reason, retry_after=retry_after)


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
    """One engine: `EngineClient`, or a fake in tests."""

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

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        """Events of one request until its last; closing the iterator cancels the request. Raises EngineUnavailable."""
        ...
