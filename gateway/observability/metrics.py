"""What `/metrics` says: TGI's series under TGI's names, vLLM's under vLLM's, and what both lack under `textgen_`.

Every request is counted once, which TGI's chat route does not manage. Labels come from closed sets only; nothing of a
request's content is ever a label. A further family of series is a `MetricsSink` and one `add` here.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

from gateway.errors import Bound
from gateway.observability.exposition import render
from gateway.observability.pod_load import Pod, PodLoad
from gateway.observability.replica_metrics import ReplicaMetrics
from gateway.observability.request_stats import RequestStats
from gateway.observability.series import Registry
from gateway.observability.sink import (
    Failure,
    Inference,
    InferenceFailure,
    MetricsSink,
    MoveCause,
    RestartCause,
    RouteReason,
)
from gateway.observability.tally import Tally
from gateway.observability.textgen_metrics import TextgenMetrics
from gateway.observability.tgi_metrics import TgiMetrics
from gateway.observability.triton_metrics import MODEL as TRITON_MODEL
from gateway.observability.triton_metrics import TritonMetrics
from gateway.observability.vllm_metrics import ADAPTER_NAMES, MODEL, VllmMetrics
from jaxengine.rpc import engine_pb2 as pb


class Metrics:
    """What one HTTP process counts, in every family.

    Args:
        shared: directory of the values of all processes, if there are several.
        counts_steps: whether this process is the one that counts the engines' steps.
        model_name: what vLLM's series call the model; its id if empty.
        memory_share: of its devices, that an engine may use.
        step_age: seconds since the step loop of an engine, by its number, last showed life.
    """

    def __init__(
        self,
        shared: Path | None = None,
        *,
        counts_steps: bool = True,
        model_name: str = "",
        memory_share: float = 1.0,
        step_age: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self._registry = Registry(shared)
        self.step_age = step_age
        self.registry = self._registry.counted
        self._counts_steps = counts_steps
        self._model_name, self._memory_share = model_name, memory_share
        self._pod, self._load = Pod(), PodLoad()
        self._model_known = False
        self._sinks: list[MetricsSink] = []
        self.add(TgiMetrics(self._registry))
        self.add(TextgenMetrics(self._registry, step_age))
        self.add(ReplicaMetrics(self._registry))

    def add(self, sink: MetricsSink) -> None:
        """Pass every event from now on to one more family."""
        self._sinks.append(sink)

    def request_received(self) -> None:
        for sink in self._sinks:
            sink.request_received()

    def request_succeeded(self, stats: RequestStats) -> None:
        for sink in self._sinks:
            sink.request_succeeded(stats)

    def request_failed(self, cause: Failure) -> None:
        for sink in self._sinks:
            sink.request_failed(cause)

    def request_refused(self, bound: Bound) -> None:
        for sink in self._sinks:
            sink.request_refused(bound)

    def inference_succeeded(self, inference: Inference) -> None:
        for sink in self._sinks:
            sink.inference_succeeded(inference)

    def inference_failed(self, model: str, reason: InferenceFailure) -> None:
        for sink in self._sinks:
            sink.inference_failed(model, reason)

    def first_token(self, seconds: float) -> None:
        for sink in self._sinks:
            sink.first_token(seconds)

    def next_token(self, seconds: float) -> None:
        for sink in self._sinks:
            sink.next_token(seconds)

    def engine_ready(self, engine: int, description: pb.Description, max_input_tokens: int) -> None:
        if not self._model_known:  # vLLM's labels and buckets are the model's, so its family begins here
            self._model_known = True
            self._model_name = self._model_name or description.model_id
            self.add(VllmMetrics(self._registry, description, self._model_name, self._memory_share))
            self.add(TritonMetrics(self._registry, self._model_name))
        for sink in self._sinks:
            sink.engine_ready(engine, description, max_input_tokens)
        self._pod.ready(engine, description)
        self._pod_changed()

    def engine_lost(self, engine: int) -> None:
        for sink in self._sinks:
            sink.engine_lost(engine)
        self._pod.lost(engine)
        self._pod_changed()

    def engine_state(self, engine: int, state: str) -> None:
        for sink in self._sinks:
            sink.engine_state(engine, state)

    def engine_restarted(self, engine: int, cause: RestartCause) -> None:
        for sink in self._sinks:
            sink.engine_restarted(engine, cause)

    def observe_step(self, engine: int, stats: pb.Stats) -> None:
        """Take an engine's statistics, which come with every step and, between steps, as a heartbeat."""
        for sink in self._sinks:
            sink.engine_reported(engine, stats)
            if self._counts_steps:
                sink.step_counted(engine, stats)
        self._pod.reported(engine, stats)
        self._pod_changed()

    def _pod_changed(self) -> None:
        self._load = self._pod.load
        for sink in self._sinks:
            sink.pod_reported(self._load)

    def request_routed(self, engine: int, reason: RouteReason, cached_tokens: int) -> None:
        for sink in self._sinks:
            sink.request_routed(engine, reason, cached_tokens)

    def request_moved(self, cause: MoveCause) -> None:
        for sink in self._sinks:
            sink.request_moved(cause)

    @property
    def load(self) -> dict[str, float]:
        """What routers weigh servers by, as the engines last reported it."""
        return {"num_requests_waiting": float(self._load.waiting), "kv_cache_usage_perc": self._load.kv_usage}

    def _without_name(self, label: str) -> str:
        """One of Triton's models by what it does: its name begins with the model's."""
        return "model" + label.removeprefix(self._model_name)

    def tally(self, names: Collection[str]) -> Tally:
        """What reads the counted series `names` again and again."""
        return self._registry.tally(names)

    def totals(self, *names: str) -> list[dict[str, float]]:
        """The values of each of the series `names`, Triton's, summed by model: over all processes, whose files are read
        once, which takes 20 ms.
        """
        found: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in names}
        for metric in self._registry.collect():
            for sample in metric.samples if metric.name in found else ():
                if not sample.name.endswith("_created"):
                    found[metric.name][sample.labels[TRITON_MODEL]] += sample.value
        return [found[name] for name in names]

    def render(self, *, named: bool) -> bytes:
        """Every series as text; unless `named`, without names of models, which not every scraper should learn."""
        hidden = {MODEL: _any_model, TRITON_MODEL: self._without_name} | dict.fromkeys(ADAPTER_NAMES, _any_adapters)
        return render(self._registry.collect(), {} if named else hidden)


def _any_model(_: str) -> str:
    return "model"


def _any_adapters(_: str) -> str:
    return "adapters"
