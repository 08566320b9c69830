"""vLLM's series: labels, values and buckets."""

import itertools
import math
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.metrics import Metrics
from jaxengine.request.event import Event
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import Live
from tests.gateway.fixtures import HELLO, serve

# Of vLLM 0.33: type, labels beside model and engine, and the buckets of histograms, ours having finer ones below.
LENGTHS = (1, 2, 5, 10, 20, 50)  # up to the longest request
LATENCIES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
VLLM: dict[str, tuple[str, set[str], tuple[float, ...]]] = {
    **{name: ("gauge", set(), ()) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")},
    "num_requests_waiting_by_reason": ("gauge", {"reason"}, ()),
    "engine_sleep_state": ("gauge", {"sleep_state"}, ()),
    **{name: ("counter", set(), ()) for name in ("prompt_tokens", "prompt_tokens_cached", "generation_tokens")},
    **{name: ("counter", set(), ()) for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")},
    **{name: ("counter", set(), ()) for name in ("mm_cache_queries", "mm_cache_hits")},
    **{name: ("counter", {"source"}, ()) for name in ("prompt_tokens_by_source", "prompt_tokens_cached_by_source")},
    "request_success": ("counter", {"finished_reason"}, ()),
    "iteration_tokens_total": ("histogram", set(), (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
    "request_params_n": ("histogram", set(), (1, 2, 5, 10, 20)),
    "request_num_preemptions": ("histogram", set(), (1, 2, 3, 4, 5, 10, 20)),
    "request_prompt_tokens": ("histogram", set(), LENGTHS),
    "request_generation_tokens": ("histogram", set(), LENGTHS),
    "request_max_num_generation_tokens": ("histogram", set(), LENGTHS),
    "request_params_max_tokens": ("histogram", set(), LENGTHS),
    "request_prefill_kv_computed_tokens": ("histogram", set(), LENGTHS),
    "time_to_first_token_seconds": ("histogram", set(), FIRST),
    "inter_token_latency_seconds": ("histogram", set(), GAPS),
    "request_time_per_output_token_seconds": ("histogram", set(), GAPS),
    "e2e_request_latency_seconds": ("histogram", set(), LATENCIES),
    "request_queue_time_seconds": ("histogram", set(), LATENCIES),
    "request_inference_time_seconds": ("histogram", set(), LATENCIES),
    "request_prefill_time_seconds": ("histogram", set(), LATENCIES),
    "request_decode_time_seconds": ("histogram", set(), LATENCIES),
}
SAMPLE = re.compile(r"^([a-z0-9_:]+)(?:{(.*)})? (\S+)$")


async def scraped() -> list[tuple[str, str, float]]:
    """Name, labels and value of every sample, after requests and steps of each kind."""
    async with serve() as app:
        metrics = app.gateway.metrics
        assert app.engine.description is not None
        metrics.engine_ready(0, app.engine.description, app.gateway.max_input_tokens)
        await app.post("/generate", inputs="lo")
        await app.post("/generate", inputs="")
        await app.post("/v1/completions", prompt="lo", max_tokens=2, n=2)
        prefill = pb.Stats(step_prefill_tokens=8, step_decode_tokens=1, step_seconds=0.01, prompt_tokens=6)
        prefill.images_encoded, prefill.images_reused = 3, 2
        prefill.cached_prompt_tokens, prefill.pages_total, prefill.pages_used, prefill.waiting = 2, 8, 2, 3
        metrics.observe_step(0, prefill)
        prefill.step_prefill_tokens, prefill.step_answered_tokens = 0, 7
        metrics.observe_step(0, prefill)
        text = (await app.http.get("/metrics")).text
    matches = [SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(matches), "a line that Prometheus cannot read"
    return [(match[1], match[2] or "", float(match[3])) for match in matches if match]


async def test_vllms_series_carry_the_model_and_say_what_happened() -> None:
    samples = {(name, labels): value for name, labels, value in await scraped()}
    model = 'engine="0",model_name="mock/model"'
    assert samples["vllm:kv_cache_usage_perc", model] == 0.25
    assert samples["vllm:prompt_tokens_total", model] == 8
    assert samples["vllm:prefix_cache_hits_total", model] == 2
    assert (samples["vllm:mm_cache_queries_total", model], samples["vllm:mm_cache_hits_total", model]) == (5, 2)
    ended = {
        reason: samples["vllm:request_success_total", f'engine="0",finished_reason="{reason}",model_name="mock/model"']
        for reason in ("stop", "length", "abort", "error")
    }
    assert ended == {"stop": 1, "length": 2, "abort": 0, "error": 1}
    assert samples["vllm:request_params_n_count", model] == 2


def test_names_types_labels_and_buckets_are_vllms() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id="m", max_total_tokens=64, page_size=16), 32)
    families = {each.name: each for each in text_string_to_metric_families(metrics.render(named=True).decode())}
    for name, (kind, labels, buckets) in VLLM.items():
        family = families["vllm:" + name]
        assert family.type == kind, name
        assert {*family.samples[0].labels} - {"le"} == {"model_name", "engine"} | labels, name
        bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}
        assert bounds >= {*buckets}, name


async def test_a_step_counts_the_tokens_that_it_answered() -> None:
    """As in vLLM, a step that only reads part of a prompt answers no token and is not counted."""
    samples = {(name, labels): value for name, labels, value in await scraped()}
    model = 'engine="0",model_name="mock/model"'
    assert samples["vllm:iteration_tokens_total_count", model] == 1
    assert samples["vllm:iteration_tokens_total_sum", model] == 7


async def test_each_sequence_of_a_request_is_counted_and_the_longest_is_the_requests() -> None:
    samples = {name: value for name, _, value in await scraped()}
    for name in ("prompt_tokens", "generation_tokens", "num_preemptions", "prefill_kv_computed_tokens"):
        assert samples[f"vllm:request_{name}_count"] == 3, name
    assert samples["vllm:request_max_num_generation_tokens_count"] == 2
    assert samples["vllm:request_max_num_generation_tokens_sum"] == len(HELLO) + 2


async def test_waiting_requests_wait_for_capacity_and_the_engine_is_awake() -> None:
    gauges = {(name, labels.partition("=")[0], labels.rpartition("=")[2]): v for name, labels, v in await scraped()}
    assert gauges["vllm:num_requests_waiting_by_reason", "engine", '"capacity"'] == 3
    assert gauges["vllm:num_requests_waiting_by_reason", "engine", '"deferred"'] == 0
    assert gauges["vllm:engine_sleep_state", "engine", '"awake"'] == 1


async def test_a_requests_preemptions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as app:
        engine, metrics = app.engine._engine, app.gateway.metrics
        advance = engine.advance

        def preempted_twice(row: Live) -> Event:
            event = advance(row)
            event.preemptions = 2 if row.generated > 2 else 0
            return event

        monkeypatch.setattr(engine, "advance", preempted_twice)
        assert app.engine.description is not None
        metrics.engine_ready(0, app.engine.description, app.gateway.max_input_tokens)
        await app.post("/generate", inputs="lo")
        text = (await app.http.get("/metrics")).text
    assert 'vllm:request_num_preemptions_sum{engine="0",model_name="mock/model"} 2.0' in text.splitlines()


async def test_refusals_are_counted_by_their_bound() -> None:
    async with serve() as app:
        admission, metrics = app.gateway.admission, app.gateway.metrics
        assert app.engine.description is not None
        metrics.engine_ready(0, app.engine.description, app.gateway.max_input_tokens)
        with admission.request(admission.max_requests):
            await app.post("/generate", inputs="lo")
        with admission.request() as other:
            other.queue(admission.max_queued_tokens)
            await app.post("/v1/completions", prompt="lo")
            await app.post("/v1/completions", prompt="lo")
        lines = (await app.http.get("/metrics")).text.splitlines()
    assert 'vllm:admission_rejections_total{model_name="mock/model",reason="max_num_queued_reqs"} 1.0' in lines
    assert 'vllm:admission_rejections_total{model_name="mock/model",reason="max_num_queued_tokens"} 2.0' in lines


def test_the_cache_is_described_in_vllms_words() -> None:
    metrics = Metrics(memory_share=0.9)
    pool = {"page_size": 16, "pages_total": 100, "max_batch_total_tokens": 1600, "max_total_tokens": 640}
    metrics.engine_ready(0, pb.Description(cache_dtype="float8_e4m3fn", prefix_cache=True, **pool), 32)
    families = text_string_to_metric_families(metrics.render(named=True).decode())
    labels = next(each for each in families if each.name == "vllm:cache_config_info").samples[0].labels
    told = {name: value for name, value in labels.items() if name not in ("engine", "model_name")}
    assert told == {
        "block_size": "16",
        "num_gpu_blocks": "100",
        "kv_cache_size_tokens": "1600",
        "kv_cache_max_concurrency": "2.5",
        "cache_dtype": "fp8_e4m3",
        "enable_prefix_caching": "True",
        "hash_block_size": "16",
        "cache_hit_alignment_tokens": "16",
        "gpu_memory_utilization": "0.9",
    }


async def test_buckets_tell_steps_of_three_milliseconds_apart() -> None:
    samples = await scraped()
    for name in ("vllm:inter_token_latency_seconds_bucket", "textgen_inter_token_seconds_bucket"):
        bounds = sorted({float(re.findall(r'le="([^"]+)"', labels)[0]) for its, labels, _ in samples if its == name})
        around = [bound for bound in bounds if 0.002 <= bound <= 0.004]
        assert all(b - a <= 0.00051 for a, b in itertools.pairwise(around)) and len(around) >= 5
        assert bounds[-1] == math.inf


def test_a_strange_model_name_cannot_break_a_line() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id='a"b\\c\nd', max_total_tokens=64, page_size=16), 32)
    lines = metrics.render(named=True).decode().splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="a\\"b\\\\c\\nd"} 0.0' in lines


def adapters_info(metrics: Metrics, *, named: bool = True) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(metrics.render(named=named).decode())
    found = [each for each in families if each.name == "vllm:lora_requests_info"]
    assert {each.type for each in found} <= {"gauge"}
    return [(sample.labels, sample.value) for each in found for sample in each.samples]


def test_the_adapters_that_are_asked_for_are_labels_of_the_latest_moment() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id="m", max_adapters=4), 32)
    before = time.time()
    for running, waiting in ((["a", "b"], ["c"]), (["c"], [])):
        metrics.observe_step(0, pb.Stats(running_adapters=running, waiting_adapters=waiting))
        [(labels, value)] = adapters_info(metrics)
        assert labels == {
            "max_lora": "4",
            "running_lora_adapters": ",".join(running),
            "waiting_lora_adapters": ",".join(waiting),
        }
        assert before <= value <= time.time()
    [(labels, _)] = adapters_info(metrics, named=False)
    assert (labels["running_lora_adapters"], labels["waiting_lora_adapters"]) == ("adapters", "")


def test_an_engine_without_adapters_says_nothing_of_them() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id="m"), 32)
    assert adapters_info(metrics) == []


def draft_counters(metrics: Metrics) -> dict[tuple[str, str], float]:
    """By name without prefix, and position."""
    found = {}
    for family in text_string_to_metric_families(metrics.render(named=True).decode()):
        if family.name.startswith("vllm:spec_decode_"):
            assert family.type == "counter"
            for sample in family.samples:
                assert {*sample.labels} - {"position"} == {"model_name", "engine"}
                name = sample.name.removeprefix("vllm:spec_decode_num_")
                found[name, sample.labels.get("position", "")] = sample.value
    return found


def test_drafts_are_counted_under_vllms_names_and_by_position_from_the_start() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id="m", max_draft_tokens=3), 32)
    positions = [("accepted_tokens_per_pos_total", str(position)) for position in range(3)]
    totals = [(name, "") for name in ("drafts_total", "draft_tokens_total", "accepted_tokens_total")]
    assert draft_counters(metrics) == dict.fromkeys(totals + positions, 0)
    for drafts in (7, 1):  # after a restart the engine counts from the start, as counters may
        stats = pb.Stats(drafts=drafts, draft_tokens=2 * drafts, accepted_draft_tokens=[drafts, 1, 0])
        metrics.observe_step(0, stats)
        assert [draft_counters(metrics)[each] for each in positions] == [drafts, 1, 0]
        assert [draft_counters(metrics)[each] for each in totals] == [drafts, 2 * drafts, drafts + 1]


def test_an_engine_that_does_not_speculate_says_nothing_of_drafts() -> None:
    metrics = Metrics()
    metrics.engine_ready(0, pb.Description(model_id="m"), 32)
    metrics.observe_step(0, pb.Stats(running=1))
    assert draft_counters(metrics) == {}
