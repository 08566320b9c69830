"""TGI's series, so that TGI's dashboards read them: names, types and buckets are TGI 3's.

Some of TGI's series time work that TGI does beside its step and this engine does inside it: choosing tokens, merging
and filtering batches. They are observed as 0 seconds.
"""

from typing import get_args

from prometheus_client import Histogram

from gateway.observability.pod_load import PodLoad
from gateway.observability.request_stats import RequestStats
from gateway.observability.series import Registry
from gateway.observability.sink import Failure, MetricsSink
from jaxengine.rpc import engine_pb2 as pb

DURATIONS = tuple(0.0001 * 1.5**k for k in range(1, 36))
BATCH_SIZES = tuple(range(1, 1025))
SKIPPED = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
METHODS = ("prefill", "decode")


class TgiMetrics(MetricsSink):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._step_failures: dict[int, int] = {}  # of each engine, as last counted
        self._sizes: dict[str, Histogram] = {}
        self._make_request_series()
        self._make_step_series()

    def _make_request_series(self) -> None:
        make = self._registry
        self._count = make.counter("tgi_request_count", "Requests received")
        self._success = make.counter("tgi_request_success", "Requests answered")
        self._failure = make.counter("tgi_request_failure", "Requests not answered, by cause", "err")
        for cause in get_args(Failure):
            self._failure.labels(cause)
        self._total = self._duration("tgi_request_duration", "Arrival to last token")
        self._validation = self._duration("tgi_request_validation_duration", "Arrival to handed to the engine")
        self._queue = self._duration("tgi_request_queue_duration", "Handed to the engine to first scheduled")
        self._inference = self._duration("tgi_request_inference_duration", "First scheduled to last token")
        self._per_token = self._duration("tgi_request_mean_time_per_token_duration", "Inference per generated token")
        self._skipped = make.histogram("tgi_request_skipped_tokens", "Accepted draft tokens of a request", SKIPPED)

    def _make_step_series(self) -> None:
        make = self._registry
        self._queue_size = make.gauge("tgi_queue_size", "Requests waiting in the engines")
        self._batch_size = make.gauge("tgi_batch_current_size", "Requests running in the engines")
        self._batch_tokens = make.gauge("tgi_batch_current_max_tokens", "KV cache tokens held by running requests")
        self._batch_limit = make.gauge("tgi_batch_max_total_tokens", "KV cache tokens in all")
        self._next_size = make.histogram("tgi_batch_next_size", "Running requests when prompts joined", BATCH_SIZES)
        self._concat = make.counter("tgi_batch_concat", "Steps in which prompts joined running requests", "reason")
        self._batches = make.counter("tgi_batch_inference_count", "Steps", "method")
        self._batches_done = make.counter("tgi_batch_inference_success", "Steps that succeeded", "method")
        self._batches_failed = make.counter("tgi_batch_inference_failure", "Steps that failed, all as decode", "method")
        for method in METHODS:
            self._batches_failed.labels(method)
        self._batch_time = self._duration("tgi_batch_inference_duration", "Time of a step", "method")
        self._forward_time = self._duration("tgi_batch_forward_duration", "Time of a step", "method")
        self._choose_time = self._duration("tgi_batch_decode_duration", "Choosing tokens, outside the step", "method")
        self._filter_time = self._duration("tgi_batch_filter_duration", "Removing requests, outside the step", "method")
        self._concat_time = self._duration("tgi_batch_concat_duration", "Adding requests, outside the step", "method")

    def request_received(self) -> None:
        self._count.inc()

    def request_succeeded(self, stats: RequestStats) -> None:
        self._success.inc()
        self._total.observe(stats.total)
        self._validation.observe(stats.validation)
        self._queue.observe(stats.queue)
        self._inference.observe(stats.inference)
        if stats.generated_tokens:  # an embedding has none
            self._per_token.observe(stats.per_token)
        self._skipped.observe(stats.accepted_draft_tokens)
        if self._sizes:
            self._sizes["input_length"].observe(stats.input_tokens)
            self._sizes["generated_tokens"].observe(stats.generated_tokens)
            self._sizes["max_new_tokens"].observe(stats.max_new_tokens)

    def request_failed(self, cause: Failure) -> None:
        self._failure.labels(cause).inc()

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        """Make the size histograms on the first start: their hundred buckets reach up to the engine's limits."""
        if not self._sizes:
            limits = {
                "input_length": max_input_tokens,
                "generated_tokens": description.max_total_tokens,
                "max_new_tokens": description.max_total_tokens,
            }
            self._sizes = {name: self._size(f"tgi_request_{name}", limit) for name, limit in limits.items()}

    def pod_reported(self, load: PodLoad) -> None:
        self._queue_size.set(load.waiting)
        self._batch_size.set(load.running)
        self._batch_tokens.set(load.held_tokens)
        self._batch_limit.set(load.tokens)

    def step_counted(self, engine: int, stats: pb.Stats) -> None:
        failures, before = stats.step_failures, self._step_failures.get(engine, 0)
        self._batches_failed.labels("decode").inc(failures - before if failures >= before else failures)  # restarted
        self._step_failures[engine] = failures
        if stats.step_seconds <= 0:
            return
        method = "prefill" if stats.step_prefill_tokens else "decode"
        self._batches.labels(method).inc()
        self._batches_done.labels(method).inc()
        self._batch_time.labels(method).observe(stats.step_seconds)
        self._forward_time.labels(method).observe(stats.step_seconds)
        for inside_the_step in (self._choose_time, self._filter_time):
            inside_the_step.labels(method).observe(0)
        if stats.step_prefill_tokens:
            self._next_size.observe(stats.running)
            if stats.step_decode_tokens:
                self._concat.labels("chunking").inc()
                self._concat_time.labels("decode").observe(0)

    def _duration(self, name: str, text: str, *labels: str) -> Histogram:
        return self._registry.histogram(name, text, DURATIONS, *labels)

    def _size(self, name: str, limit: int) -> Histogram:
        return self._registry.histogram(name, "Tokens per request", [limit * (k + 1) / 100 for k in range(100)])
