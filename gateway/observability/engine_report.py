"""Metrics of the engine's own keeping, as it last reported them."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from jaxengine.rpc import engine_pb2 as pb

ENGINE_COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "cached_prompt_tokens",
    "generated_tokens",
    "step_failures",
    "compiles_after_warmup",
)


class EngineReport:
    """What the engine last told of itself; its counters fall to zero when it restarts, as counters may."""

    def __init__(self) -> None:
        self.stats = pb.Stats()
        self.last_step_age: Callable[[], float] = lambda: 0.0

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "textgen_last_step_age_seconds", "Since the step loop last showed life", self.last_step_age()
        )
        for name in ENGINE_COUNTERS:
            metric = Metric(f"textgen_{name}", f"Since the engine started: {name.replace('_', ' ')}", "counter")
            metric.add_sample(metric.name, {}, getattr(self.stats, name))
            yield metric
