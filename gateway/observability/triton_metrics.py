"""Triton's series of inferences, so that its dashboards and aiperf read them: one of each for every model.

They count the requests of the inference protocol, over HTTP and gRPC; requests of other protocols are in the other
families. Durations are in microseconds, of answered requests, since the start. A request is a batch of its own here, so
executions are as many as inferences.
"""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from gateway.observability.pod_load import PodLoad
from gateway.observability.series import Registry
from gateway.observability.sink import Inference, InferenceFailure, MetricsSink

MODEL = "model"
LABELS = (MODEL, "version")
VERSION = "1"
PARTS = ("queue", "input", "infer", "output")  # of a request's time, as `Inference` names them
DURATIONS = {"total": "request", "queue": "queue", **{part: f"compute_{part}" for part in PARTS[1:]}}
MICROSECONDS = 1e6
FIRST_RESPONSE_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2000, 5000, 10_000)


class TritonMetrics(MetricsSink):
    """What `nv_inference_` series count in one HTTP process.

    Args:
        model_name: of the model that reads texts, whose requests the engines keep waiting.
    """

    def __init__(self, registry: Registry, model_name: str) -> None:
        self._model_name = model_name
        self._waiting = 0
        self._succeeded = registry.counter("nv_inference_request_success", "Requests answered", *LABELS)
        self._failed = registry.counter("nv_inference_request_failure", "Requests not answered", *LABELS, "reason")
        self._count = registry.counter("nv_inference_count", "Inferences", *LABELS)
        self._executions = registry.counter("nv_inference_exec_count", "Batches of one or more inferences", *LABELS)
        self._durations = {
            part: registry.counter(f"nv_inference_{name}_duration_us", f"{name.capitalize()} time", *LABELS)
            for part, name in DURATIONS.items()
        }
        self._first = registry.histogram(
            "nv_inference_first_response_histogram_ms", "Arrival to first response", FIRST_RESPONSE_MS, *LABELS
        )
        self._last = registry.gauge("textgen_last_inference_ms", "When a model last answered, Unix time", *LABELS)
        registry.add_reported(self)

    def inference_succeeded(self, inference: Inference) -> None:
        labels = (inference.model, VERSION)
        for counter in (self._succeeded, self._count, self._executions):
            counter.labels(*labels).inc()
        for part, counter in self._durations.items():
            counter.labels(*labels).inc(getattr(inference, part) * MICROSECONDS)
        self._first.labels(*labels).observe(1000 * inference.first)
        self._last.labels(*labels).set(int(1000 * time.time()))

    def inference_failed(self, model: str, reason: InferenceFailure) -> None:
        self._failed.labels(model, VERSION, reason).inc()

    def pod_reported(self, load: PodLoad) -> None:
        self._waiting = load.waiting

    def collect(self) -> Iterator[Metric]:
        metric = Metric("nv_inference_pending_request_count", "Requests that wait in the engines", "gauge")
        metric.add_sample(metric.name, dict(zip(LABELS, (self._model_name, VERSION), strict=True)), self._waiting)
        yield metric
