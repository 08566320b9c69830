"""What happens in a server that metrics count: the interface of every family of series.

A family is a set of series under one naming scheme, TGI's or vLLM's. It overrides the events it counts, and
`gateway.observability.metrics.Metrics` passes every event to every family. Engines are told apart by their numbers.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.errors import Bound
from gateway.observability.pod_load import PodLoad
from gateway.observability.request_stats import RequestStats
from jaxengine.rpc import engine_pb2 as pb

RestartCause = Literal["died", "hung", "asked"]
RouteReason = Literal["prefix", "load", "hash", "moved"]
MoveCause = Literal["lost", "drained"]
Failure = Literal["overloaded", "validation", "generation", "incomplete", "dropped", "template", "unavailable"]
InferenceFailure = Literal["REJECTED", "CANCELED", "BACKEND", "OTHER"]


@dataclass(frozen=True)
class Inference:
    """An answered request of the inference protocol, by the name of one of its models. Times are in seconds.

    first: arrival to first response. total: arrival to last. queue, input, infer, output: the parts of the total.
    """

    model: str
    first: float
    total: float
    queue: float
    input: float
    infer: float
    output: float


class MetricsSink:
    """One family of series. Each event does nothing unless the family overrides it. Times are in seconds."""

    def request_received(self) -> None:
        """A request came. It ends as a success or as a failure."""

    def request_succeeded(self, stats: RequestStats) -> None:
        """A request was answered to its end."""

    def request_failed(self, cause: Failure) -> None:
        """A request ended otherwise; "dropped" where the client left."""

    def request_refused(self, bound: Bound) -> None:
        """A bound of `Admission` refused a request, which is a failure too."""

    def inference_succeeded(self, inference: Inference) -> None:
        """A request of the inference protocol was answered; if it went through the engine, it was a request too."""

    def inference_failed(self, model: str, reason: InferenceFailure) -> None:
        """A request of the inference protocol ended otherwise."""

    def first_token(self, seconds: float) -> None:
        """A request's first token came, so long after the request."""

    def next_token(self, seconds: float) -> None:
        """One more token of a sequence came, so long after the one before; tokens that came together share the time."""

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        """An engine started, for the first time or again, and its limits are known."""

    def engine_lost(self, engine: int) -> None:
        """An engine is not there until it is ready again: it does nothing and holds nothing."""

    def engine_state(self, engine: int, state: str) -> None:
        """The supervisor sees an engine in another state."""

    def engine_restarted(self, engine: int, cause: RestartCause) -> None:
        """The supervisor starts an engine again."""

    def engine_reported(self, engine: int, stats: pb.Stats) -> None:
        """An engine's latest statistics, which every HTTP process gets: for series of each engine."""

    def pod_reported(self, load: PodLoad) -> None:
        """What all engines do, told after each of them is ready, lost or has reported: for gauges of the server."""

    def request_routed(self, engine: int, reason: RouteReason, cached_tokens: int) -> None:
        """A request was sent to an engine, where so many tokens of its text are known to be cached."""

    def request_moved(self, cause: MoveCause) -> None:
        """A request goes on elsewhere: its engine was lost, or is to stop."""

    def step_counted(self, engine: int, stats: pb.Stats) -> None:
        """The same statistics, in the one HTTP process that counts steps: for counters and histograms.

        `step_seconds` is 0 in a heartbeat, which belongs to no step.
        """
