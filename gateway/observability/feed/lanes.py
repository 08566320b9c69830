"""What each engine last reported, for a lane of its own."""

from gateway.observability.sink import MetricsSink
from jaxengine.rpc import engine_pb2 as pb


class Lanes(MetricsSink):
    """The engines' statistics by their numbers, and whether each is there. There is always engine 0."""

    def __init__(self) -> None:
        self.stats: dict[int, pb.Stats] = {0: pb.Stats()}
        self.present: set[int] = set()

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        self.present.add(engine)
        known = self.stats.get(engine, pb.Stats())
        self.stats[engine] = _idle(known, description.pages_total)

    def engine_lost(self, engine: int) -> None:
        self.present.discard(engine)
        self.stats[engine] = _idle(self.stats.get(engine, pb.Stats()), 0)

    def engine_reported(self, engine: int, stats: pb.Stats) -> None:
        self.stats[engine] = stats


def _idle(stats: pb.Stats, pages: int) -> pb.Stats:
    """An engine that does nothing yet, or no more. What it has counted stays until it reports again."""
    idle = pb.Stats()
    idle.CopyFrom(stats)
    idle.waiting = idle.running = idle.pages_used = idle.pages_cached = 0
    idle.pages_total = pages
    return idle
