"""What an endpoint picker of the Gateway API's Inference Extension, or llm-d's, reads of a server and sends to it.

The rules are those of the extension's proposal 003, and of llm-d's core-metrics-extractor, which takes the first sample
of a name that has no time of its own: by vLLM's names for pods that no label calls otherwise.
"""

import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxengine.rpc import engine_pb2 as pb
from tests.deploy.fetched import promtool
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.observability.test_replica_metrics import BUSY, CALM, ENGINE, two_engines

HEADERS = {
    "x-request-id": "5f0c6d1e-8d2b-4a51-9d5a-3f1a7f3f8f11",
    "x-session-token": "bW9kZWxzL2RlbW8tMA==",
    "x-gateway-inference-objective": "chat",
    "x-gateway-inference-fairness-id": "tenant-1",
    "x-gateway-destination-endpoint": "10.0.0.7:3000",
    "x-gateway-destination-endpoint-served": "10.0.0.7:3000",
    "x-gateway-model-name-rewrite": "mock/model",
    "x-slo-ttft-ms": "200",
    "x-slo-tpot-ms": "20.5",
}
CHAT = {"messages": [{"role": "user", "content": "lo"}], "max_tokens": 3, "temperature": 0}
COMPLETION = {"prompt": "lo", "max_tokens": 3, "temperature": 0}


@dataclass(frozen=True)
class Endpoint:
    """What a picker knows of a server."""

    waiting: int
    running: int
    kv_usage: float
    block_size: int
    blocks: int
    adapters: tuple[int, set[str], set[str]]  # at once, running, waiting


def read(text: str) -> Endpoint:
    gauges: dict[str, tuple[dict[str, str], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.type == "gauge":
                gauges.setdefault(sample.name, (sample.labels, sample.value))
    cache, adapters = gauges["vllm:cache_config_info"][0], gauges["vllm:lora_requests_info"][0]
    running, waiting = (
        {name.strip() for name in adapters[f"{state}_lora_adapters"].split(",") if name.strip()}
        for state in ("running", "waiting")
    )
    return Endpoint(
        int(gauges["vllm:num_requests_waiting"][1]),
        int(gauges["vllm:num_requests_running"][1]),
        gauges["vllm:kv_cache_usage_perc"][1],
        int(cache["block_size"]),
        int(cache["num_gpu_blocks"]),
        (int(adapters["max_lora"]), running, waiting),
    )


def busy(app: ServedApp) -> None:
    for engine, stats in enumerate((BUSY, CALM)):
        app.gateway.metrics.engine_ready(engine, ENGINE, 32)
        app.gateway.metrics.observe_step(engine, stats)


async def test_it_reads_the_load_of_the_whole_server_on_the_port_that_it_sends_requests_to() -> None:
    async with serve() as app:
        busy(app)
        seen = read((await app.http.get("/metrics")).text)
    assert seen == Endpoint(3, 6, 0.375, 16, 200, (4, {"a", "b", "d"}, {"c"}))


async def test_it_needs_no_key_but_is_not_told_names_of_adapters_without() -> None:
    async with serve(api_key="secret") as app:
        busy(app)
        seen = read((await app.http.get("/metrics")).text)
        authorized = read((await app.http.get("/metrics", headers={"authorization": "Bearer secret"})).text)
    assert seen == Endpoint(3, 6, 0.375, 16, 200, (4, {"adapters"}, {"adapters"}))
    assert authorized.adapters == (4, {"a", "b", "d"}, {"c"})


def test_a_full_cache_is_1_and_no_percentage() -> None:
    full = pb.Stats(pages_total=100, pages_used=100, running=1)
    assert read(two_engines(full, full).render(named=True).decode()).kv_usage == 1


def test_prometheus_own_parser_which_pickers_use_reads_every_line() -> None:
    """promtool ends with 1 for what it cannot read, and with 3 for names that it would choose otherwise, as TGI's."""
    text = two_engines().render(named=True)
    done = subprocess.run([promtool(), "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert done.returncode == 3 and b"parsing" not in done.stderr, done.stderr
    broken = subprocess.run([promtool(), "check", "metrics"], input=text + text, capture_output=True, timeout=60)
    assert broken.returncode == 1 and b"parsing" in broken.stderr, broken.stderr


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)], ids=["chat", "completion"]
)
async def test_its_headers_change_no_answer_and_the_requests_id_is_kept(path: str, body: dict[str, Any]) -> None:
    async with serve() as app:
        plain = await app.http.post(path, json=body)
        routed = await app.http.post(path, json=body, headers=HEADERS)
    assert (plain.status_code, routed.status_code) == (200, 200)
    assert routed.json()["choices"] == plain.json()["choices"]
    assert routed.headers["x-request-id"] == HEADERS["x-request-id"]
