"""Series of each of several engines, under `textgen_replica_`, and of requests on their way to and between them."""

from typing import get_args

from gateway.observability.pod_load import cache_usage
from gateway.observability.series import Registry
from gateway.observability.sink import MetricsSink, MoveCause, RouteReason
from jaxengine.rpc import engine_pb2 as pb


class ReplicaMetrics(MetricsSink):
    def __init__(self, registry: Registry) -> None:
        self._requests = registry.gauge("textgen_replica_requests", "Requests by what they do", "engine", "state")
        self._usage = registry.gauge("textgen_replica_kv_usage", "Share of KV cache pages in use, 0 to 1", "engine")
        self._picks = registry.counter("textgen_replica_picks", "Requests sent there, by why", "engine", "reason")
        self._moves = registry.counter("textgen_request_moves", "Requests that left an engine early, by why", "cause")
        for cause in get_args(MoveCause):
            self._moves.labels(cause)
        self._cached = registry.counter(
            "textgen_route_cached_tokens", "Prompt tokens taken to be cached where their request was sent"
        )

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        self._set(engine, pb.Stats())
        for reason in get_args(RouteReason):
            self._picks.labels(engine, reason)

    def engine_lost(self, engine: int) -> None:
        self._set(engine, pb.Stats())

    def engine_reported(self, engine: int, stats: pb.Stats) -> None:
        self._set(engine, stats)

    def request_routed(self, engine: int, reason: RouteReason, cached_tokens: int) -> None:
        self._picks.labels(engine, reason).inc()
        self._cached.inc(cached_tokens)

    def request_moved(self, cause: MoveCause) -> None:
        self._moves.labels(cause).inc()

    def _set(self, engine: int, stats: pb.Stats) -> None:
        self._requests.labels(engine, "running").set(stats.running)
        self._requests.labels(engine, "waiting").set(stats.waiting)
        self._usage.labels(engine).set(cache_usage(stats))
