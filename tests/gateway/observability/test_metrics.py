"""`/metrics`: TGI's names and types, every request counted once, and what the engine reports."""

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock, call, create_autospec

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.metrics import Metrics
from gateway.observability.pod_load import PodLoad
from gateway.observability.request_stats import RequestStats, Sequence
from gateway.observability.series import Registry
from gateway.observability.sink import Inference, MetricsSink
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp, serve

# Of TGI 3.
TGI = {
    "tgi_request_count": "counter", "tgi_request_success": "counter", "tgi_request_failure": "counter",
    "tgi_request_duration": "histogram", "tgi_request_validation_duration": "histogram",
    "tgi_request_queue_duration": "histogram", "tgi_request_inference_duration": "histogram",
    "tgi_request_mean_time_per_token_duration": "histogram", "tgi_request_input_length": "histogram",
    "tgi_request_generated_tokens": "histogram", "tgi_request_max_new_tokens": "histogram",
    "tgi_queue_size": "gauge", "tgi_batch_current_size": "gauge", "tgi_batch_current_max_tokens": "gauge",
    "tgi_batch_max_total_tokens": "gauge", "tgi_batch_next_size": "histogram", "tgi_batch_concat": "counter",
    "tgi_batch_inference_count": "counter", "tgi_batch_inference_success": "counter",
    "tgi_batch_inference_failure": "counter",
    "tgi_batch_inference_duration": "histogram", "tgi_batch_forward_duration": "histogram",
    "tgi_batch_decode_duration": "histogram", "tgi_batch_filter_duration": "histogram",
    "tgi_batch_concat_duration": "histogram", "tgi_request_skipped_tokens": "histogram",
}  # fmt: skip


SEQUENCE = Sequence(
    input_tokens=1,
    cached_tokens=0,
    generated_tokens=2,
    max_new_tokens=2,
    preemptions=0,
    accepted_draft_tokens=1,
    finish="length",
)
REQUEST = RequestStats(sequences=(SEQUENCE,), validation=0.1, queue=0.1, inference=0.1, total=0.3, first_token=0.2)


def families(text: str) -> Mapping[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


async def values(app: ServedApp) -> dict[str, float]:
    """Every sample as it is written, labels included."""
    lines = (await app.http.get("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[0] != "#"}


def ready_metrics() -> Metrics:
    metrics = Metrics()
    pool = {"max_batch_total_tokens": 1600, "page_size": 16, "pages_total": 300}  # of a model with three page tables
    metrics.engine_ready(0, pb.Description(max_total_tokens=200, **pool), 100)
    return metrics


def test_names_and_types_are_tgis() -> None:
    found = {name: family.type for name, family in families(ready_metrics().render(named=True).decode()).items()}
    assert {name: kind for name, kind in found.items() if name.startswith("tgi_")} == TGI


def test_every_event_reaches_a_family_that_is_added() -> None:
    metrics, family = Metrics(), create_autospec(MetricsSink, instance=True)
    metrics.add(family)
    events: dict[str, tuple[Any, ...]] = {
        "request_received": (), "request_succeeded": (REQUEST,), "request_failed": ("dropped",),
        "inference_succeeded": (Inference("a", 1, 2, 0, 0, 2, 0),), "inference_failed": ("a", "OTHER"),
        "request_refused": ("requests",), "first_token": (0.1,), "next_token": (0.1,),
        "engine_ready": (1, pb.Description(max_total_tokens=200), 100), "engine_lost": (1,),
        "engine_state": (1, "ready"), "engine_restarted": (1, "died"),
        "request_routed": (1, "prefix", 16), "request_moved": ("lost",),
    }  # fmt: skip
    for name, given in events.items():
        getattr(metrics, name)(*given)
        getattr(family, name).assert_called_once_with(*given)
    metrics.observe_step(1, stats := pb.Stats(running=1))
    family.engine_reported.assert_called_once_with(1, stats)
    family.step_counted.assert_called_once_with(1, stats)
    idle, running = PodLoad(), PodLoad(running=1)
    assert family.pod_reported.mock_calls == [call(idle), call(idle), call(running)]  # ready, lost, a step
    further = {"engine_reported", "pod_reported", "step_counted"}
    assert further | {*events} == {name for name in vars(MetricsSink) if name[0] != "_"}


def test_steps_are_counted_in_one_process_only() -> None:
    metrics, family = Metrics(counts_steps=False), create_autospec(MetricsSink, instance=True)
    metrics.add(family)
    metrics.observe_step(0, stats := pb.Stats(running=1))
    family.engine_reported.assert_called_once_with(0, stats)
    family.pod_reported.assert_called_once_with(PodLoad(running=1))
    family.step_counted.assert_not_called()


def test_no_counter_of_tgi_ends_in_total_and_each_of_ours_does() -> None:
    text = ready_metrics().render(named=True).decode()
    counters = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith("counter")]
    assert counters
    assert all(name.endswith("_total") == name.startswith(("textgen_", "vllm:")) for name in counters)


def test_buckets_are_tgis() -> None:
    found = families(ready_metrics().render(named=True).decode())
    bounds = {
        name: [float(s.labels["le"]) for s in found[name].samples if s.name.endswith("_bucket")]
        for name in ("tgi_request_duration", "tgi_request_input_length", "tgi_request_generated_tokens")
    }
    durations = bounds["tgi_request_duration"]
    assert durations[:-1] == pytest.approx([0.0001 * 1.5**k for k in range(1, 36)])
    assert bounds["tgi_request_input_length"][:-1] == pytest.approx([float(k) for k in range(1, 101)])
    assert bounds["tgi_request_generated_tokens"][:-1] == pytest.approx([2.0 * k for k in range(1, 101)])
    assert all(its[-1] == float("inf") for its in bounds.values())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "hello"}),
        ("/generate_stream", {"inputs": "hello"}),
        ("/v1/completions", {"model": "mock/model", "prompt": "hello"}),
        ("/v1/chat/completions", {"model": "mock/model", "messages": [{"role": "user", "content": "hello"}]}),
    ],
)
async def test_a_request_is_counted_once_whatever_its_route(path: str, body: dict[str, object]) -> None:
    async with serve() as app:
        assert app.engine.description is not None
        app.gateway.metrics.engine_ready(0, app.engine.description, app.gateway.max_input_tokens)
        assert (await app.post(path, body)).status_code == 200
        found = await values(app)
    for name in ("tgi_request_count", "tgi_request_success", "tgi_request_duration_count"):
        assert found[name] == 1
    assert found["tgi_request_generated_tokens_sum"] == len(app.engine._engine.options.script)
    assert found["textgen_time_to_first_token_seconds_count"] == 1


@pytest.mark.parametrize("tokens_per_step", [1, 2, 5])
async def test_the_time_between_tokens_is_each_sequences_own(tokens_per_step: int) -> None:
    """And is counted once for each token, so that its mean is that of the tokens, however many come together."""
    async with serve(tokens_per_step=tokens_per_step) as app:
        await app.post("/v1/completions", prompt="lo", max_tokens=4, n=3)
        found = await values(app)
    assert found["textgen_time_to_first_token_seconds_count"] == 1
    assert found["textgen_inter_token_seconds_count"] == 3 * 3
    assert 0 < found["textgen_inter_token_seconds_sum"] <= 3 * found["tgi_request_duration_sum"]
    assert 0 < found["tgi_request_mean_time_per_token_duration_sum"] <= found["tgi_request_duration_sum"] / 12


@pytest.mark.parametrize(
    ("tokens_per_step", "parameters", "accepted"),
    [
        (1, {}, 0),
        (2, {}, 2),  # 1 + 2 + 2 + 1 tokens, the last being EOS
        (4, {}, 3),  # 1 + 4 + 1
        (4, {"max_new_tokens": 3}, 1),  # 1 + 2
        (4, {"max_new_tokens": 1}, 0),
        (4, {"stop": ["lo"]}, 0),  # 1 + the first of 4
        (4, {"stop": ["wor"]}, 2),
    ],
)
async def test_accepted_draft_tokens_are_those_in_the_answer(
    tokens_per_step: int, parameters: dict[str, Any], accepted: int
) -> None:
    async with serve(tokens_per_step=tokens_per_step) as app:
        answer = await app.post("/generate", inputs="lo", parameters={"details": True, **parameters})
        found = await values(app)
    assert (found["tgi_request_skipped_tokens_count"], found["tgi_request_skipped_tokens_sum"]) == (1, accepted)
    assert answer.json()["details"]["generated_tokens"] > accepted


@pytest.mark.parametrize(
    ("body", "unavailable", "cause"),
    [
        ({"inputs": "hello", "parameters": {"top_k": 0}}, None, "validation"),
        ({"inputs": "hello"}, "gone", "unavailable"),
    ],
)
async def test_a_failure_is_counted_once_by_its_cause(
    body: dict[str, object], unavailable: str | None, cause: str
) -> None:
    async with serve() as app:
        app.engine.unavailable = unavailable
        assert (await app.post("/generate", body)).status_code >= 400
        found = await values(app)
    assert found["tgi_request_count"] == found[f'tgi_request_failure{{err="{cause}"}}'] == 1
    assert found["tgi_request_success"] == 0


def test_steps_become_gauges_and_batches() -> None:
    metrics = ready_metrics()
    both = pb.Stats(waiting=3, running=5, pages_total=100, pages_used=20, pages_cached=30, generated_tokens=7)
    both.step_prefill_tokens, both.step_decode_tokens, both.step_seconds = 64, 4, 0.01
    metrics.observe_step(0, both)
    decode = pb.Stats(running=5, pages_total=100, pages_used=20, step_decode_tokens=5, step_seconds=0.01)
    metrics.observe_step(0, decode)
    metrics.observe_step(0, pb.Stats(running=5, pages_total=100, pages_used=21, generated_tokens=12))  # a heartbeat
    text = metrics.render(named=True).decode()
    for line in (
        'tgi_batch_inference_count{method="prefill"} 1.0',
        'tgi_batch_inference_count{method="decode"} 1.0',
        'tgi_batch_concat{reason="chunking"} 1.0',
        "tgi_batch_current_max_tokens 336.0",
        'textgen_kv_pages{engine="0",state="free"} 79.0',
        'textgen_generated_tokens_total{engine="0"} 12.0',
        "tgi_batch_max_total_tokens 1600.0",
    ):
        assert line in text.splitlines()


def test_the_engine_is_in_one_state() -> None:
    metrics = Metrics()
    for state in ("starting", "ready", "dead"):
        metrics.engine_state(0, state)
    states = [
        line for line in metrics.render(named=True).decode().splitlines() if line.startswith("textgen_engine_state{")
    ]
    assert [line for line in states if not line.endswith(" 0.0")] == [
        'textgen_engine_state{engine="0",state="dead"} 1.0'
    ]


def test_pages_are_reported_before_the_first_step() -> None:
    lines = ready_metrics().render(named=True).decode().splitlines()
    assert {'textgen_kv_pages{engine="0",state="used"} 0.0', 'textgen_kv_pages{engine="0",state="free"} 300.0'} <= {
        *lines
    }
    assert any(line.startswith("vllm:cache_config_info{") and 'num_gpu_blocks="300"' in line for line in lines)


def test_totals_of_many_series_read_the_processes_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = ready_metrics()
    metrics.inference_succeeded(Inference("a", first=1.0, total=1.0, queue=0.25, input=0.25, infer=0.25, output=0.25))
    collect = Mock(side_effect=Registry.collect)
    monkeypatch.setattr(Registry, "collect", lambda registry: collect(registry))
    count, queue, unknown = metrics.totals("nv_inference_count", "nv_inference_queue_duration_us", "nv_unknown")
    assert (count, queue, unknown) == ({"a": 1}, {"a": 250_000}, {})
    collect.assert_called_once()
