"""vLLM's series, so that the dashboards, autoscalers and routing gateways made for vLLM read them without relabelling.

Labels are vLLM's: the model and the engine's number. The engines' own counters have a series of each engine; all else
is of the whole server and has the number 0.

Buckets are vLLM's with finer ones below: vLLM's finest inter-token bucket is 10 ms, and a step of an 8B model takes
3 ms.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Gauge, Histogram
from prometheus_client.core import Metric

from gateway.errors import Bound
from gateway.observability.pod_load import PodLoad
from gateway.observability.request_stats import RequestStats, Sequence
from gateway.observability.series import Registry
from gateway.observability.sink import Failure, MetricsSink
from jaxengine.rpc import engine_pb2 as pb

MODEL = "model_name"
LABELS = (MODEL, "engine")
ADAPTER_NAMES = ("running_lora_adapters", "waiting_lora_adapters")  # labels
STEP_SECONDS = (0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.005, 0.006, 0.008)
TOKEN_SECONDS = (
    *STEP_SECONDS,
    *(0.01, 0.015, 0.02, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
REQUEST_SECONDS = (
    *(0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
REJECTIONS: dict[Bound, str] = {"requests": "max_num_queued_reqs", "tokens": "max_num_queued_tokens"}


class VllmMetrics(MetricsSink):
    """What `vllm:` series count in one HTTP process.

    Args:
        description: of an engine that is ready, which the others are like; its limits are those of the buckets.
        model_name: what the series call the model.
        memory_share: of its devices, that an engine may use.
    """

    def __init__(self, registry: Registry, description: pb.Description, model_name: str, memory_share: float) -> None:
        self._registry = registry
        self._model_name = model_name
        self._labels = (model_name, "0")
        self._description, self._memory_share = description, memory_share
        self._stats: dict[int, pb.Stats] = {}  # of each engine, as last reported
        self._load = PodLoad()
        self._running = self._gauge("num_requests_running", "Requests running in the engines").labels(*self._labels)
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting in the engines").labels(*self._labels)
        by_reason = self._gauge("num_requests_waiting_by_reason", "Requests waiting, by what for", "reason")
        self._waiting_for_capacity = by_reason.labels(*self._labels, "capacity")
        by_reason.labels(*self._labels, "deferred")  # for vLLM's transfers, which are not here
        asleep = self._gauge("engine_sleep_state", "1 for the state it is in: it never sleeps", "sleep_state")
        for state in ("awake", "weights_offloaded", "discard_all"):
            asleep.labels(*self._labels, state).set(state == "awake")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV cache pages in use, 0 to 1").labels(*self._labels)
        self._finished = registry.counter(
            "vllm:request_success", "Requests by how they ended", *LABELS, "finished_reason"
        )
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(*self._labels, reason)
        rejections = registry.counter("vllm:admission_rejections", "Requests refused, by bound", MODEL, "reason")
        self._rejections = {bound: rejections.labels(model_name, name) for bound, name in REJECTIONS.items()}
        self._first_token = self._histogram("time_to_first_token_seconds", FIRST_TOKEN_SECONDS)
        self._next_token = self._histogram("inter_token_latency_seconds", TOKEN_SECONDS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", TOKEN_SECONDS)
        seconds = {name: f"request_{name}_time_seconds" for name in ("queue", "inference", "prefill", "decode")}
        seconds["total"] = "e2e_request_latency_seconds"
        self._seconds = {part: self._histogram(name, REQUEST_SECONDS) for part, name in seconds.items()}
        lengths = _one_two_five(description.max_total_tokens)
        self._prompt = self._histogram("request_prompt_tokens", lengths)
        self._generated = self._histogram("request_generation_tokens", lengths)
        self._max_tokens = self._histogram("request_params_max_tokens", lengths)
        self._computed = self._histogram("request_prefill_kv_computed_tokens", lengths)
        self._longest = self._histogram("request_max_num_generation_tokens", lengths)
        self._preemptions = self._histogram("request_num_preemptions", PREEMPTIONS)
        self._choices = self._histogram("request_params_n", CHOICES)
        self._step_tokens = self._histogram("iteration_tokens_total", STEP_TOKENS)
        registry.add_reported(self)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._next_token.observe(seconds)

    def request_failed(self, cause: Failure) -> None:
        self._finished.labels(*self._labels, "abort" if cause == "dropped" else "error").inc()

    def request_refused(self, bound: Bound) -> None:
        self._rejections[bound].inc()

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        self._stats.setdefault(engine, pb.Stats())

    def engine_reported(self, engine: int, stats: pb.Stats) -> None:
        self._stats[engine] = stats

    def pod_reported(self, load: PodLoad) -> None:
        self._load = load
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._waiting_for_capacity.set(load.waiting)
        self._usage.set(load.kv_usage)

    def step_counted(self, engine: int, stats: pb.Stats) -> None:
        if stats.step_seconds > 0 and stats.step_answered_tokens:
            self._step_tokens.observe(stats.step_answered_tokens)

    def request_succeeded(self, stats: RequestStats) -> None:
        for each in stats.sequences:
            self._count_sequence(each)
        for part, histogram in self._seconds.items():
            histogram.observe(getattr(stats, part))
        if stats.per_gap is not None:
            self._per_token.observe(stats.per_gap)
        self._longest.observe(max(each.generated_tokens for each in stats.sequences))
        self._choices.observe(len(stats.sequences))

    def _count_sequence(self, sequence: Sequence) -> None:
        """vLLM counts each sequence of a request as a request."""
        self._finished.labels(*self._labels, sequence.finish).inc()
        self._prompt.observe(sequence.input_tokens)
        self._computed.observe(sequence.input_tokens - sequence.cached_tokens)
        self._generated.observe(sequence.generated_tokens)
        self._max_tokens.observe(sequence.max_new_tokens)
        self._preemptions.observe(sequence.preemptions)

    def collect(self) -> Iterator[Metric]:
        """What the engines report: their own counters, and what is written into labels."""
        yield self._cache_config()
        yield from self._counters()
        if self._description.max_draft_tokens:
            yield from self._draft_counters()
        if self._description.max_adapters:
            yield self._adapters()

    def _cache_config(self) -> Metric:
        metric = Metric("vllm:cache_config_info", "The KV caches", "gauge")
        config = _cache_config(self._description, self._load, self._memory_share)
        metric.add_sample(metric.name, dict(zip(LABELS, self._labels, strict=True)) | config, 1)
        return metric

    def _adapters(self) -> Metric:
        """Which adapters are asked for. The value is the time, by which vLLM's readers tell the latest of several."""
        metric = Metric("vllm:lora_requests_info", "Adapters of running and of waiting requests", "gauge")
        names = (",".join(self._load.running_adapters), ",".join(self._load.waiting_adapters))
        labels = dict(zip(ADAPTER_NAMES, names, strict=True)) | {"max_lora": str(self._description.max_adapters)}
        metric.add_sample(metric.name, labels, time.time())
        return metric

    def _counters(self) -> Iterator[Metric]:
        yield self._counter("prompt_tokens", _prompt_tokens)
        yield self._counter_by("source", "prompt_tokens_by_source", _prompt_sources)
        yield self._counter("prompt_tokens_cached", lambda stats: stats.cached_prompt_tokens)
        yield self._counter_by(
            "source", "prompt_tokens_cached_by_source", lambda stats: {"device": stats.cached_prompt_tokens}
        )
        yield self._counter("generation_tokens", lambda stats: stats.generated_tokens)
        yield self._counter("prefix_cache_queries", _prompt_tokens)
        yield self._counter("prefix_cache_hits", lambda stats: stats.cached_prompt_tokens)
        yield self._counter("mm_cache_queries", lambda stats: stats.images_encoded + stats.images_reused)
        yield self._counter("mm_cache_hits", lambda stats: stats.images_reused)
        yield self._counter("num_preemptions", lambda stats: stats.preemptions)

    def _draft_counters(self) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", lambda stats: stats.drafts)
        yield self._counter("spec_decode_num_draft_tokens", lambda stats: stats.draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", lambda stats: sum(stats.accepted_draft_tokens))
        yield self._counter_by("position", "spec_decode_num_accepted_tokens_per_pos", self._accepted)

    def _accepted(self, stats: pb.Stats) -> dict[str, float]:
        """By position, every one from the start."""
        accepted = dict.fromkeys(map(str, range(self._description.max_draft_tokens)), 0.0)
        return accepted | {str(position): count for position, count in enumerate(stats.accepted_draft_tokens)}

    def _counter(self, name: str, value: Callable[[pb.Stats], float]) -> Metric:
        """One of each engine's counters."""
        return self._counter_by("", name, lambda stats: {"": value(stats)})

    def _counter_by(self, label: str, name: str, values: Callable[[pb.Stats], Mapping[str, float]]) -> Metric:
        """One of each engine's counters: its values by what `label` says of them, if it is not empty."""
        metric = Metric(f"vllm:{name}", f"Since the engine started: {name.replace('_', ' ')}", "counter")
        for engine, stats in sorted(self._stats.items()):
            for said, value in values(stats).items():
                labels = {MODEL: self._model_name, "engine": str(engine)} | ({label: said} if label else {})
                metric.add_sample(metric.name, labels, value)
        return metric

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        names = (*LABELS, *labels)
        return self._registry.gauge(f"vllm:{name}", text, *names)

    def _histogram(self, name: str, buckets: Iterable[float]) -> Histogram:
        text = name.replace("_", " ").capitalize()
        return self._registry.histogram(f"vllm:{name}", text, buckets, *LABELS).labels(*self._labels)


def _one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20 … up to `limit`."""
    bounds = [float(m * 10**e) for e in range(10) for m in (1, 2, 5)]
    return [bound for bound in bounds if bound <= limit] or [1.0]


def _prompt_tokens(stats: pb.Stats) -> int:
    return stats.prompt_tokens + stats.cached_prompt_tokens


def _prompt_sources(stats: pb.Stats) -> dict[str, float]:
    return {"local_compute": stats.prompt_tokens, "local_cache_hit": stats.cached_prompt_tokens}


def _cache_config(description: pb.Description, load: PodLoad, memory_share: float) -> dict[str, str]:
    """Those of vLLM's labels that apply here, worded as vLLM does; routers compute a server's capacity from them."""
    page = str(description.page_size)
    return {
        "block_size": page,
        "num_gpu_blocks": str(load.pages),
        "kv_cache_size_tokens": str(load.tokens),
        "kv_cache_max_concurrency": str(load.tokens / max(1, description.max_total_tokens)),
        "cache_dtype": description.cache_dtype.replace("float8", "fp8").removesuffix("fn"),
        "enable_prefix_caching": str(description.prefix_cache),
        "hash_block_size": page,
        "cache_hit_alignment_tokens": page,
        "gpu_memory_utilization": str(memory_share),
    }
