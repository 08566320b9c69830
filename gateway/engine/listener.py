"""The interface of whatever `EngineClient` notifies when its engine becomes ready, makes a step, hangs or is lost."""

from jaxengine.rpc import engine_pb2 as pb


class EngineListener:
    """What `EngineClient` tells about its engine, whose number comes first. Each method does nothing unless a subclass
    overrides it.

    All are called on the event loop and must return at once.
    """

    def engine_progress(self, engine: int, description: pb.Description) -> None:
        """The engine's state or its progress line changed."""

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        """Requests can be sent from now on: at the first start, and after every restart."""

    def engine_step(self, engine: int, step: pb.StepEvents) -> None:
        """The step loop sent a message."""

    def engine_hung(self, engine: int) -> None:
        """The step loop was silent for the hang limit."""

    def engine_lost(self, engine: int) -> None:
        """The connection that was ready has ended: no request can be sent until the engine is ready again."""
