"""Several engines in `/metrics`: what each counts for itself, and what exists once, for routers before the server."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.observability.metrics import Metrics
from jaxengine.rpc import engine_pb2 as pb
from tests.processes import ROOT

POOL = {"page_size": 16, "pages_total": 100, "max_batch_total_tokens": 1600, "max_total_tokens": 640}
ENGINE = pb.Description(model_id="m", max_adapters=4, max_draft_tokens=1, **POOL)
BUSY = pb.Stats(
    waiting=3,
    running=5,
    pages_total=100,
    pages_used=50,
    pages_cached=20,
    preemptions=1,
    prompt_tokens=700,
    cached_prompt_tokens=300,
    generated_tokens=90,
    running_adapters=["a", "b"],
    waiting_adapters=["c"],
    drafts=4,
    draft_tokens=4,
    accepted_draft_tokens=[3],
)
CALM = pb.Stats(
    running=1,
    pages_total=100,
    pages_used=25,
    prompt_tokens=40,
    generated_tokens=8,
    running_adapters=["b", "d"],
)
# What a server says of its engines that routers read: once, however many there are.
ONCE = (
    *("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:cache_config_info", "vllm:lora_requests_info", "nv_inference_pending_request_count"),
)


def two_engines(first: pb.Stats = BUSY, second: pb.Stats = CALM) -> Metrics:
    metrics = Metrics()
    for engine, stats in enumerate((first, second)):
        metrics.engine_ready(engine, ENGINE, 32)
        metrics.observe_step(engine, stats)
    return metrics


def samples(text: str | Metrics) -> dict[str, float]:
    """Every sample as it is written, labels included."""
    text = text.render(named=True).decode() if isinstance(text, Metrics) else text
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert len(found) == len(lines), "a series is there twice"
    return found


def of(found: Mapping[str, float], *families: str) -> dict[str, float]:
    """The samples of these families."""
    return {name: value for name, value in found.items() if name.partition("{")[0] in families}


def labels(found: Mapping[str, float], family: str) -> dict[str, str]:
    """Those of the only sample of a family."""
    [name] = of(found, family)
    return dict(re.findall(r'(\w+)="([^"]*)"', name))


def test_one_engine_has_the_number_0() -> None:
    metrics = Metrics(step_age=lambda engine: 0.5 + engine)
    metrics.engine_state(0, "ready")
    metrics.engine_ready(0, ENGINE, 32)
    metrics.observe_step(0, BUSY)
    expected = {
        'textgen_engine_state{engine="0",state="ready"}': 1,
        'textgen_engine_restarts_total{cause="died",engine="0"}': 0,
        'textgen_engine_restarts_total{cause="hung",engine="0"}': 0,
        'textgen_engine_restarts_total{cause="asked",engine="0"}': 0,
        'textgen_last_step_age_seconds{engine="0"}': 0.5,
        'textgen_kv_pages{engine="0",state="used"}': 50,
        'textgen_kv_pages{engine="0",state="cached"}': 20,
        'textgen_kv_pages{engine="0",state="free"}': 30,
        'textgen_prompt_tokens_total{engine="0"}': 700,
        'textgen_replica_requests{engine="0",state="running"}': 5,
        'textgen_replica_requests{engine="0",state="waiting"}': 3,
        'textgen_replica_kv_usage{engine="0"}': 0.5,
        'vllm:num_requests_running{engine="0",model_name="m"}': 5,
        'vllm:num_requests_waiting{engine="0",model_name="m"}': 3,
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"}': 0.5,
        'vllm:prompt_tokens_total{engine="0",model_name="m"}': 1000,
        "tgi_batch_current_size": 5,
    }
    found = samples(metrics)
    assert {name: found.get(name) for name in expected} == expected
    assert {number for name in found for number in re.findall(r'engine="(\d+)"', name)} == {"0"}


def test_each_engine_has_counters_and_gauges_of_its_own() -> None:
    expected = {
        'textgen_kv_pages{engine="0",state="used"}': 50,
        'textgen_kv_pages{engine="0",state="cached"}': 20,
        'textgen_kv_pages{engine="0",state="free"}': 30,
        'textgen_kv_pages{engine="1",state="used"}': 25,
        'textgen_kv_pages{engine="1",state="cached"}': 0,
        'textgen_kv_pages{engine="1",state="free"}': 75,
        'textgen_preemptions_total{engine="0"}': 1,
        'textgen_preemptions_total{engine="1"}': 0,
        'textgen_prompt_tokens_total{engine="0"}': 700,
        'textgen_prompt_tokens_total{engine="1"}': 40,
        'textgen_cached_prompt_tokens_total{engine="0"}': 300,
        'textgen_cached_prompt_tokens_total{engine="1"}': 0,
        'textgen_generated_tokens_total{engine="0"}': 90,
        'textgen_generated_tokens_total{engine="1"}': 8,
        'textgen_replica_requests{engine="0",state="running"}': 5,
        'textgen_replica_requests{engine="0",state="waiting"}': 3,
        'textgen_replica_requests{engine="1",state="running"}': 1,
        'textgen_replica_requests{engine="1",state="waiting"}': 0,
        'textgen_replica_kv_usage{engine="0"}': 0.5,
        'textgen_replica_kv_usage{engine="1"}': 0.25,
        'vllm:prompt_tokens_total{engine="0",model_name="m"}': 1000,
        'vllm:prompt_tokens_total{engine="1",model_name="m"}': 40,
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"}': 700,
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"}': 300,
        'vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"}': 40,
        'vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_cache_hit"}': 0,
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"}': 300,
        'vllm:prefix_cache_hits_total{engine="1",model_name="m"}': 0,
        'vllm:generation_tokens_total{engine="0",model_name="m"}': 90,
        'vllm:generation_tokens_total{engine="1",model_name="m"}': 8,
        'vllm:num_preemptions_total{engine="0",model_name="m"}': 1,
        'vllm:num_preemptions_total{engine="1",model_name="m"}': 0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"}': 3,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"}': 0,
    }
    assert of(samples(two_engines()), *(name.partition("{")[0] for name in expected)) == expected


def test_what_routers_read_exists_once() -> None:
    found = samples(two_engines())
    assert [len(of(found, family)) for family in ONCE] == [1] * len(ONCE)
    expected = {
        "tgi_queue_size": 3,
        "tgi_batch_current_size": 6,
        "tgi_batch_current_max_tokens": 1200,
        "tgi_batch_max_total_tokens": 3200,
        'vllm:num_requests_running{engine="0",model_name="m"}': 6,
        'vllm:num_requests_waiting{engine="0",model_name="m"}': 3,
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"}': 3,
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"}': 0,
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"}': 0.375,
        'nv_inference_pending_request_count{model="m",version="1"}': 3,
    }
    assert of(found, *(name.partition("{")[0] for name in expected)) == expected


def test_two_equal_engines_have_twice_the_cache_of_one() -> None:
    described = labels(samples(two_engines()), "vllm:cache_config_info")
    capacity = ("num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "block_size", "engine")
    assert [described[name] for name in capacity] == ["200", "3200", "5.0", "16", "0"]


def test_adapters_are_those_of_all_engines() -> None:
    expected = {"running_lora_adapters": "a,b,d", "waiting_lora_adapters": "c", "max_lora": "4"}
    assert labels(samples(two_engines()), "vllm:lora_requests_info") == expected


def test_the_load_that_answers_tell_is_the_servers() -> None:
    metrics = two_engines()
    assert metrics.load == {"num_requests_waiting": 3, "kv_cache_usage_perc": 0.375}
    metrics.engine_lost(0)
    assert metrics.load == {"num_requests_waiting": 0, "kv_cache_usage_perc": 0.25}
    metrics.engine_lost(1)
    assert metrics.load == {"num_requests_waiting": 0, "kv_cache_usage_perc": 0}


def test_a_lost_engine_does_nothing_and_what_it_has_counted_stays() -> None:
    metrics = two_engines()
    metrics.engine_lost(0)
    expected = {
        "tgi_queue_size": 0,
        "tgi_batch_current_size": 1,
        "tgi_batch_current_max_tokens": 400,
        "tgi_batch_max_total_tokens": 1600,
        'vllm:num_requests_running{engine="0",model_name="m"}': 1,
        'vllm:num_requests_waiting{engine="0",model_name="m"}': 0,
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"}': 0.25,
        'nv_inference_pending_request_count{model="m",version="1"}': 0,
        'textgen_replica_requests{engine="0",state="running"}': 0,
        'textgen_replica_requests{engine="0",state="waiting"}': 0,
        'textgen_replica_requests{engine="1",state="running"}': 1,
        'textgen_replica_requests{engine="1",state="waiting"}': 0,
        'textgen_replica_kv_usage{engine="0"}': 0,
        'textgen_replica_kv_usage{engine="1"}': 0.25,
        'textgen_kv_pages{engine="0",state="used"}': 0,
        'textgen_kv_pages{engine="0",state="cached"}': 0,
        'textgen_kv_pages{engine="0",state="free"}': 0,
        'textgen_kv_pages{engine="1",state="used"}': 25,
        'textgen_kv_pages{engine="1",state="cached"}': 0,
        'textgen_kv_pages{engine="1",state="free"}': 75,
        'textgen_prompt_tokens_total{engine="0"}': 700,
        'textgen_prompt_tokens_total{engine="1"}': 40,
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"}': 300,
        'vllm:prefix_cache_hits_total{engine="1",model_name="m"}': 0,
    }
    found = samples(metrics)
    assert of(found, *(name.partition("{")[0] for name in expected)) == expected
    assert labels(found, "vllm:cache_config_info")["num_gpu_blocks"] == "100"
    asked_for = labels(found, "vllm:lora_requests_info")
    assert (asked_for["running_lora_adapters"], asked_for["waiting_lora_adapters"]) == ("b,d", "")


def test_the_counters_of_a_restarted_engine_begin_anew_when_it_reports_and_no_other_ones_do() -> None:
    metrics = two_engines()
    before = samples(metrics)
    metrics.engine_restarted(0, "died")
    metrics.engine_lost(0)
    metrics.engine_ready(0, ENGINE, 32)
    waiting = samples(metrics)
    metrics.observe_step(0, pb.Stats(pages_total=100, prompt_tokens=5))
    after = samples(metrics)
    names = [f'textgen_prompt_tokens_total{{engine="{engine}"}}' for engine in (0, 1)]
    names += [f'vllm:prompt_tokens_total{{engine="{engine}",model_name="m"}}' for engine in (0, 1)]
    names += [f'textgen_engine_restarts_total{{cause="died",engine="{engine}"}}' for engine in (0, 1)]
    assert [before[name] for name in names] == [700, 40, 1000, 40, 0, 0]
    assert [waiting[name] for name in names] == [700, 40, 1000, 40, 1, 0]
    assert [after[name] for name in names] == [5, 40, 5, 40, 1, 0]
    assert after["tgi_batch_max_total_tokens"] == waiting["tgi_batch_max_total_tokens"] == 3200
    assert waiting['textgen_kv_pages{engine="0",state="free"}'] == 100
    assert waiting['vllm:kv_cache_usage_perc{engine="0",model_name="m"}'] == 0.125


def test_states_and_restarts_are_each_engines() -> None:
    metrics = Metrics()
    for engine, states in ((1, ("starting", "ready", "dead")), (0, ("starting", "ready"))):
        for state in states:
            metrics.engine_state(engine, state)
    metrics.engine_restarted(1, "asked")
    assert of(samples(metrics), "textgen_engine_state", "textgen_engine_restarts_total") == {
        'textgen_engine_state{engine="0",state="starting"}': 0,
        'textgen_engine_state{engine="0",state="ready"}': 1,
        'textgen_engine_state{engine="1",state="starting"}': 0,
        'textgen_engine_state{engine="1",state="ready"}': 0,
        'textgen_engine_state{engine="1",state="dead"}': 1,
        'textgen_engine_restarts_total{cause="died",engine="0"}': 0,
        'textgen_engine_restarts_total{cause="hung",engine="0"}': 0,
        'textgen_engine_restarts_total{cause="asked",engine="0"}': 0,
        'textgen_engine_restarts_total{cause="died",engine="1"}': 0,
        'textgen_engine_restarts_total{cause="hung",engine="1"}': 0,
        'textgen_engine_restarts_total{cause="asked",engine="1"}': 1,
    }


def test_a_step_loop_that_stands_still_is_told_from_the_others() -> None:
    metrics = Metrics(step_age=lambda engine: (0.25, 12.0)[engine])
    metrics.engine_ready(1, ENGINE, 32)
    assert of(samples(metrics), "textgen_last_step_age_seconds") == {
        'textgen_last_step_age_seconds{engine="0"}': 0.25,
        'textgen_last_step_age_seconds{engine="1"}': 12,
    }


def test_steps_of_all_engines_are_counted_together() -> None:
    metrics = two_engines()
    for engine, failures in ((0, 2), (1, 1), (0, 3), (1, 1), (0, 1)):  # the last after a restart
        metrics.observe_step(engine, pb.Stats(step_decode_tokens=1, step_seconds=0.01, step_failures=failures))
    found = samples(metrics)
    assert found['textgen_step_seconds_count{method="decode"}'] == 5
    assert found['tgi_batch_inference_count{method="decode"}'] == 5
    assert found['tgi_batch_inference_failure{method="decode"}'] == 5


def test_where_requests_are_sent_and_that_they_move_is_counted() -> None:
    metrics = two_engines()
    families = ("textgen_replica_picks_total", "textgen_request_moves_total", "textgen_route_cached_tokens_total")
    assert set(of(samples(metrics), *families).values()) == {0}
    metrics.request_routed(0, "hash", 0)
    metrics.request_routed(1, "prefix", 64)
    metrics.request_routed(1, "prefix", 32)
    metrics.request_moved("lost")
    metrics.request_routed(0, "moved", 16)
    assert of(samples(metrics), *families) == {
        'textgen_replica_picks_total{engine="0",reason="prefix"}': 0,
        'textgen_replica_picks_total{engine="0",reason="load"}': 0,
        'textgen_replica_picks_total{engine="0",reason="hash"}': 1,
        'textgen_replica_picks_total{engine="0",reason="moved"}': 1,
        'textgen_replica_picks_total{engine="1",reason="prefix"}': 2,
        'textgen_replica_picks_total{engine="1",reason="load"}': 0,
        'textgen_replica_picks_total{engine="1",reason="hash"}': 0,
        'textgen_replica_picks_total{engine="1",reason="moved"}': 0,
        'textgen_request_moves_total{cause="lost"}': 1,
        'textgen_request_moves_total{cause="drained"}': 0,
        "textgen_route_cached_tokens_total": 112,
    }


PROCESS = """
import os, sys
from pathlib import Path
from gateway.observability.metrics import Metrics
from tests.gateway.observability.test_replica_metrics import BUSY, CALM, ENGINE

number = int(sys.argv[1])
metrics = Metrics(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), counts_steps=number == 0)
if number == 0:
    metrics.engine_state(1, "ready")
    metrics.engine_restarted(1, "hung")
for engine, stats in enumerate((BUSY, CALM)):
    metrics.engine_ready(engine, ENGINE, 32)
    metrics.observe_step(engine, stats)
for _ in range(number + 1):
    metrics.request_routed(1, "prefix", 16)
    metrics.request_moved("drained")
print(metrics.render(named=True).decode())
"""


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """What the third of three HTTP processes says, each of which hears the same of the engines."""
    shared = tmp_path_factory.mktemp("shared")
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(shared), "PYTHONPATH": str(ROOT)}
    for number in range(3):
        command = [sys.executable, "-c", PROCESS, str(number)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert len(list(Path(shared).glob("counter_*.db"))) == 3
    return samples(done.stdout)


def test_several_processes_report_the_same_gauges_once(scrape: dict[str, float]) -> None:
    expected = {
        'vllm:num_requests_running{engine="0",model_name="m"}': 6,
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"}': 0.375,
        "tgi_batch_current_size": 6,
        "tgi_batch_max_total_tokens": 3200,
        'textgen_replica_requests{engine="0",state="running"}': 5,
        'textgen_replica_requests{engine="0",state="waiting"}': 3,
        'textgen_replica_requests{engine="1",state="running"}': 1,
        'textgen_replica_requests{engine="1",state="waiting"}': 0,
        'textgen_replica_kv_usage{engine="0"}': 0.5,
        'textgen_replica_kv_usage{engine="1"}': 0.25,
        'textgen_prompt_tokens_total{engine="0"}': 700,
        'textgen_prompt_tokens_total{engine="1"}': 40,
    }
    assert of(scrape, *(name.partition("{")[0] for name in expected)) == expected
    assert [len(of(scrape, family)) for family in ONCE] == [1] * len(ONCE)


def test_what_several_processes_count_is_summed(scrape: dict[str, float]) -> None:
    assert scrape['textgen_replica_picks_total{engine="1",reason="prefix"}'] == 1 + 2 + 3
    assert scrape['textgen_replica_picks_total{engine="0",reason="prefix"}'] == 0
    assert scrape['textgen_request_moves_total{cause="drained"}'] == 6
    assert scrape["textgen_route_cached_tokens_total"] == 6 * 16


def test_what_only_the_first_process_knows_is_told_by_all(scrape: dict[str, float]) -> None:
    assert scrape['textgen_engine_state{engine="1",state="ready"}'] == 1
    assert scrape['textgen_engine_restarts_total{cause="hung",engine="1"}'] == 1
    assert scrape['textgen_engine_restarts_total{cause="hung",engine="0"}'] == 0
