"""Series that neither TGI nor vLLM has, under `textgen_`: latencies, each engine's pages, state and own counters."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import Metric

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
    "images_encoded",
    "images_reused",
)
PAGE_STATES = ("used", "cached", "free")


class TextgenMetrics(MetricsSink):
    """What `textgen_` series count in one HTTP process.

    Args:
        step_age: seconds since the step loop of an engine, by its number, last showed life; called at every scrape.
    """

    def __init__(self, registry: Registry, step_age: Callable[[int], float]) -> None:
        self._first_token = registry.histogram(
            "textgen_time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN_SECONDS
        )
        self._next_token = registry.histogram(
            "textgen_inter_token_seconds", "Between two tokens of a sequence", TOKEN_SECONDS
        )
        self._step_time = registry.histogram("textgen_step_seconds", "Time of a step", TOKEN_SECONDS, "method")
        self._pages = registry.gauge("textgen_kv_pages", "KV cache pages by what they hold", "engine", "state")
        self._restarts = registry.counter("textgen_engine_restarts", "Engine restarts by cause", "engine", "cause")
        self._state = registry.gauge("textgen_engine_state", "1 for the state it is in, else 0", "engine", "state")
        self._states: defaultdict[int, set[str]] = defaultdict(set)  # that each engine has been in
        self._step_age = step_age
        self._stats: dict[int, pb.Stats] = {}  # of each engine, as last reported
        self._meet(0)  # there is always one
        registry.add_reported(self)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._next_token.observe(seconds)

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        self._meet(engine)
        self._set_pages(engine, description.pages_total)

    def engine_lost(self, engine: int) -> None:
        self._set_pages(engine, 0)

    def engine_state(self, engine: int, state: str) -> None:
        self._meet(engine)
        states = self._states[engine]
        states.add(state)
        for each in states:
            self._state.labels(engine, each).set(each == state)

    def engine_restarted(self, engine: int, cause: RestartCause) -> None:
        self._restarts.labels(engine, cause).inc()

    def engine_reported(self, engine: int, stats: pb.Stats) -> None:
        self._stats[engine] = stats
        self._set_pages(engine, stats.pages_total, stats.pages_used, stats.pages_cached)

    def step_counted(self, engine: int, stats: pb.Stats) -> None:
        if stats.step_seconds > 0:
            self._step_time.labels("prefill" if stats.step_prefill_tokens else "decode").observe(stats.step_seconds)

    def _meet(self, engine: int) -> None:
        """Begin the series of an engine, if it is a new one."""
        if engine in self._stats:
            return
        self._stats[engine] = pb.Stats()
        for state in PAGE_STATES:
            self._pages.labels(engine, state)
        for cause in get_args(RestartCause):  # from 0 on: Prometheus sees no increase in a series that begins with 1
            self._restarts.labels(engine, cause)

    def _set_pages(self, engine: int, total: int, used: int = 0, cached: int = 0) -> None:
        for state, pages in zip(PAGE_STATES, (used, cached, total - used - cached), strict=True):
            self._pages.labels(engine, state).set(pages)

    def collect(self) -> Iterator[Metric]:
        """What each engine counts, as last reported. Its counters fall to zero when it restarts, as counters may; their
        sum over engines would fall too, by less, and no reader could tell by how much.
        """
        age = Metric("textgen_last_step_age_seconds", "Since the step loop last showed life", "gauge")
        for engine in sorted(self._stats):
            age.add_sample(age.name, {"engine": str(engine)}, self._step_age(engine))
        yield age
        for name in ENGINE_COUNTERS:
            metric = Metric(f"textgen_{name}", f"Since the engine started: {name.replace('_', ' ')}", "counter")
            for engine, stats in sorted(self._stats.items()):
                metric.add_sample(metric.name, {"engine": str(engine)}, getattr(stats, name))
            yield metric
