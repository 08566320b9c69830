"""What routes need of an engine: the interface, and the error when there is no engine."""

from collections.abc import AsyncGenerator
from typing import Protocol

from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb


class EngineUnavailable(RequestError):
    """The engine is not ready, or it went away while this request ran."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(Kind.UNAVAILABLE, reason, retry_after=retry_after)


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

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        """Events of one request until its last; closing the iterator cancels the request. Raises EngineUnavailable."""
        ...
