"""What `/metrics` says: TGI's series under TGI's names, vLLM's under vLLM's, and what both lack under `textgen_`.

Names, types and buckets of `tgi_*` are TGI 3's, so its dashboards read them; every request is counted once, which TGI's
chat route does not manage. What happens inside a step here and beside it there (choosing tokens, merging and filtering
batches, accepting drafts) is observed as the 0 seconds or tokens it takes of its own. Labels come from closed sets
only. Nothing of a request's content is ever a label.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.errors import Bound
from gateway.observability.engine_report import EngineReport
from gateway.observability.exposition import render
from gateway.observability.request_stats import RequestStats
from gateway.observability.vllm_metrics import FIRST_TOKEN_SECONDS, MODEL, TOKEN_SECONDS, VllmMetrics
from jaxengine.rpc import engine_pb2 as pb

DURATIONS = tuple(0.0001 * 1.5**k for k in range(1, 36))
BATCH_SIZES = tuple(range(1, 1025))
SKIPPED = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
Failure = Literal["overloaded", "validation", "generation", "incomplete", "dropped", "template", "unavailable"]
METHODS = ("prefill", "decode")


class Metrics:
    """What one process counts.

    Args:
        shared: directory of the values of all processes, if there are several.
        counts_steps: whether it is the one that counts the engine's steps.
        model_name: what vLLM's series call the model; its id if empty.
        memory_share: of the device, that the engine may use.
    """

    def __init__(
        self,
        shared: Path | None = None,
        *,
        counts_steps: bool = True,
        model_name: str = "",
        memory_share: float = 1.0,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._reports = CollectorRegistry(auto_describe=False)  # of what the engine last told every process
        self._shared = shared
        self._counts_steps = counts_steps
        self._tokens = 0  # that the pool holds
        self._sizes: dict[str, Histogram] = {}
        self._requests()
        self._steps()
        self._own()
        self._engine = EngineReport()
        self._reports.register(self._engine)
        self._vllm = VllmMetrics(self.registry, self._reports, model_name, memory_share)

    def _requests(self) -> None:
        self._count = self._counter("tgi_request_count", "Requests received")
        self._success = self._counter("tgi_request_success", "Requests answered")
        self._failure = self._counter("tgi_request_failure", "Requests not answered, by cause", "err")
        for cause in get_args(Failure):
            self._failure.labels(cause)
        self._total = self._duration("tgi_request_duration", "Arrival to last token")
        self._validation = self._duration("tgi_request_validation_duration", "Arrival to handed to the engine")
        self._queue = self._duration("tgi_request_queue_duration", "Handed to the engine to first scheduled")
        self._inference = self._duration("tgi_request_inference_duration", "First scheduled to last token")
        self._per_token = self._duration("tgi_request_mean_time_per_token_duration", "Inference per generated token")
        self._skipped = Histogram(
            "tgi_request_skipped_tokens", "Accepted draft tokens", registry=self.registry, buckets=SKIPPED
        )

    def _steps(self) -> None:
        self._queue_size = self._gauge("tgi_queue_size", "Requests waiting in the engine")
        self._batch_size = self._gauge("tgi_batch_current_size", "Requests running in the engine")
        self._batch_tokens = self._gauge("tgi_batch_current_max_tokens", "KV cache tokens held by running requests")
        self._batch_limit = self._gauge("tgi_batch_max_total_tokens", "KV cache tokens in all")
        self._next_size = Histogram(
            "tgi_batch_next_size", "Running requests when prompts joined", registry=self.registry, buckets=BATCH_SIZES
        )
        self._concat = self._counter("tgi_batch_concat", "Steps in which prompts joined running requests", "reason")
        self._batches = self._counter("tgi_batch_inference_count", "Steps", "method")
        self._batches_done = self._counter("tgi_batch_inference_success", "Steps that succeeded", "method")
        self._batches_failed = self._counter(
            "tgi_batch_inference_failure", "Steps that failed, all as decode", "method"
        )
        for method in METHODS:
            self._batches_failed.labels(method)
        self._batch_time = self._duration("tgi_batch_inference_duration", "Time of a step", "method")
        self._forward_time = self._duration("tgi_batch_forward_duration", "Time of a step", "method")
        self._choose_time = self._duration("tgi_batch_decode_duration", "Choosing tokens, outside the step", "method")
        self._filter_time = self._duration("tgi_batch_filter_duration", "Removing requests, outside the step", "method")
        self._concat_time = self._duration("tgi_batch_concat_duration", "Adding requests, outside the step", "method")

    def _own(self) -> None:
        self._first_token = self._histogram(
            "textgen_time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN_SECONDS
        )
        self._next_token = self._histogram(
            "textgen_inter_token_seconds", "Between two events of a stream, per token", TOKEN_SECONDS
        )
        self._step_time = self._histogram("textgen_step_seconds", "Time of a step", TOKEN_SECONDS, "method")
        self._pages = self._gauge("textgen_kv_pages", "KV cache pages by what they hold", "state")
        for state in ("used", "cached", "free"):
            self._pages.labels(state)
        self._restarts = self._counter("textgen_engine_restarts", "Engine restarts by cause", "cause")
        self._state = self._gauge("textgen_engine_state", "1 for the state the engine is in, else 0", "state")
        self._states: set[str] = set()  # it was in

    def received(self) -> None:
        self._count.inc()

    def succeeded(self, stats: RequestStats) -> None:
        self._success.inc()
        self._total.observe(stats.total)
        self._validation.observe(stats.validation)
        self._queue.observe(stats.queue)
        self._inference.observe(stats.inference)
        self._per_token.observe(stats.per_token)
        self._skipped.observe(0)
        self._vllm.succeeded(stats)
        if self._sizes:
            self._sizes["input_length"].observe(stats.input_tokens)
            self._sizes["generated_tokens"].observe(stats.generated_tokens)
            self._sizes["max_new_tokens"].observe(stats.max_new_tokens)

    def failed(self, cause: Failure) -> None:
        self._failure.labels(cause).inc()
        self._vllm.ended("abort" if cause == "dropped" else "error")

    def refused(self, bound: Bound) -> None:
        self._vllm.refused(bound)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)
        self._vllm.first_token(seconds)

    def next_token(self, seconds: float) -> None:
        self._next_token.observe(seconds)
        self._vllm.next_token(seconds)

    def engine_restarted(self, cause: Literal["died", "hung"]) -> None:
        self._restarts.labels(cause).inc()

    def engine_state(self, state: str) -> None:
        self._states.add(state)
        for each in self._states:
            self._state.labels(each).set(each == state)

    def watch_steps(self, age: Callable[[], float]) -> None:
        """Report `age()` as the seconds since the step loop last showed life."""
        self._engine.last_step_age = age

    @property
    def load(self) -> dict[str, float]:
        """What routers weigh servers by, as last reported."""
        stats = self._engine.stats
        usage = stats.pages_used / max(1, stats.pages_total)
        return {"num_requests_waiting": float(stats.waiting), "kv_cache_usage_perc": usage}

    def engine_ready(self, description: pb.Description, max_input_tokens: int) -> None:
        """Learn the engine's limits: the size histograms have a hundred buckets up to them."""
        self._tokens = description.max_batch_total_tokens
        self._batch_limit.set(description.max_batch_total_tokens)
        self._show_pages(description.pages_total)
        self._vllm.engine_ready(description)
        if not self._sizes:
            limits = {
                "input_length": max_input_tokens,
                "generated_tokens": description.max_total_tokens,
                "max_new_tokens": description.max_total_tokens,
            }
            self._sizes = {name: self._size(f"tgi_request_{name}", limit) for name, limit in limits.items()}

    def observe_step(self, stats: pb.Stats) -> None:
        failures = max(0, stats.step_failures - self._engine.stats.step_failures)
        self._engine.stats = stats
        self._vllm.report(stats)
        self._queue_size.set(stats.waiting)
        self._batch_size.set(stats.running)
        self._batch_tokens.set(stats.pages_used * self._tokens // max(1, stats.pages_total))
        self._show_pages(stats.pages_total, stats.pages_used, stats.pages_cached)
        if self._counts_steps:
            self._batches_failed.labels("decode").inc(failures)
            if stats.step_seconds > 0:
                self._observe_batch(stats)

    def _show_pages(self, total: int, used: int = 0, cached: int = 0) -> None:
        for state, pages in (("used", used), ("cached", cached), ("free", total - used - cached)):
            self._pages.labels(state).set(pages)

    def _observe_batch(self, stats: pb.Stats) -> None:
        method = "prefill" if stats.step_prefill_tokens else "decode"
        self._vllm.stepped(stats)
        self._batches.labels(method).inc()
        self._batches_done.labels(method).inc()
        self._batch_time.labels(method).observe(stats.step_seconds)
        self._forward_time.labels(method).observe(stats.step_seconds)
        self._step_time.labels(method).observe(stats.step_seconds)
        for inside_the_step in (self._choose_time, self._filter_time):
            inside_the_step.labels(method).observe(0)
        if stats.step_prefill_tokens:
            self._next_size.observe(stats.running)
            if stats.step_decode_tokens:
                self._concat.labels("chunking").inc()
                self._concat_time.labels("decode").observe(0)

    def render(self, *, named: bool) -> bytes:
        """Every series; unless `named`, without the model's name, which not everybody who may scrape should learn."""
        counted = self.registry if self._shared is None else MultiProcessCollector(None, str(self._shared))
        hidden = {} if named else {MODEL: "model"}
        return render(itertools.chain(counted.collect(), self._reports.collect()), hidden)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode="mostrecent")

    def _duration(self, name: str, text: str, *labels: str) -> Histogram:
        return self._histogram(name, text, DURATIONS, *labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

    def _size(self, name: str, limit: int) -> Histogram:
        buckets = [limit * (k + 1) / 100 for k in range(100)]
        return Histogram(name, "Tokens per request", registry=self.registry, buckets=buckets)
