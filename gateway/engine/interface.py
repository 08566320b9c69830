"""What routes need of an engine: the interface, and how it fails."""

from collections.abc import AsyncGenerator
from typing import Protocol

from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb


class EngineUnavailable(RequestError):
    """The engine is not ready, or it went away while this request ran."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(Kind.UNAVAILABLE, reason, retry_after=retry_after)


class Engine(Protocol):
    """`EngineClient`, or a fake in tests."""

    @property
    def description(self) -> pb.Description | None:
        """The latest description; None before the engine first answered."""
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def retry_after(self) -> int:
        """Seconds after which an engine that is not ready may be: what a 503 advises."""
        ...

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]: ...
