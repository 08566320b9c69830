"""Series that neither TGI nor vLLM has, under `textgen_`: latencies, pages, the engine's state and its own counters."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.observability.series import Registry
from gateway.observability.sink import MetricsSink, RestartCause
from gateway.observability.vllm_metrics import FIRST_TOKEN_SECONDS, TOKEN_SECONDS
from jaxengine.rpc import engine_pb2 as pb

ENGINE_COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "cached_prompt_tokens",
    "generated_tokens",
    "step_failures",
    "compiles_after_warmup",
    "grammars_compiled",
    "grammar_cache_hits",
    "grammar_refusals",
    "grammar_compile_seconds",
    "grammar_mask_seconds",
)
PAGE_STATES = ("used", "cached", "free")


class TextgenMetrics(MetricsSink):
    """What `textgen_` series count in one HTTP process.

    Args:
        step_age: seconds since the engine's step loop last showed life; called at every scrape.
    """

    def __init__(self, registry: Registry, step_age: Callable[[], float]) -> None:
        self._first_token = registry.histogram(
            "textgen_time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN_SECONDS
        )
        self._next_token = registry.histogram(
            "textgen_inter_token_seconds", "Between two tokens of a sequence", TOKEN_SECONDS
        )
        self._step_time = registry.histogram("textgen_step_seconds", "Time of a step", TOKEN_SECONDS, "method")
        self._pages = registry.gauge("textgen_kv_pages", "KV cache pages by what they hold", "state")
        for state in PAGE_STATES:
            self._pages.labels(state)
        self._restarts = registry.counter("textgen_engine_restarts", "Engine restarts by cause", "cause")
        for cause in get_args(RestartCause):  # from 0 on: Prometheus sees no increase in a series that begins with 1
            self._restarts.labels(cause)
        self._state = registry.gauge("textgen_engine_state", "1 for the state the engine is in, else 0", "state")
        self._states: set[str] = set()  # that the engine has been in
        self._step_age = step_age
        self._stats = pb.Stats()
        registry.add_reported(self)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._next_token.observe(seconds)

    def engine_ready(self, description: pb.Description, max_input_tokens: int) -> None:
        self._set_pages(description.pages_total)

    def engine_state(self, state: str) -> None:
        self._states.add(state)
        for each in self._states:
            self._state.labels(each).set(each == state)

    def engine_restarted(self, cause: RestartCause) -> None:
        self._restarts.labels(cause).inc()

    def engine_reported(self, stats: pb.Stats) -> None:
        self._stats = stats
        self._set_pages(stats.pages_total, stats.pages_used, stats.pages_cached)

    def step_counted(self, stats: pb.Stats) -> None:
        if stats.step_seconds > 0:
            self._step_time.labels("prefill" if stats.step_prefill_tokens else "decode").observe(stats.step_seconds)

    def _set_pages(self, total: int, used: int = 0, cached: int = 0) -> None:
        for state, pages in zip(PAGE_STATES, (used, cached, total - used - cached), strict=True):
            self._pages.labels(state).set(pages)

    def collect(self) -> Iterator[Metric]:
        """What the engine counts, as last reported. Its counters fall to zero when it restarts, as counters may."""
        yield GaugeMetricFamily(
            "textgen_last_step_age_seconds", "Since the step loop last showed life", self._step_age()
        )
        for name in ENGINE_COUNTERS:
            metric = Metric(f"textgen_{name}", f"Since the engine started: {name.replace('_', ' ')}", "counter")
            metric.add_sample(metric.name, {}, getattr(self._stats, name))
            yield metric
