"""Every query of TGI's and our Grafana board, our alerts and vLLM's autoscalers finds a series, after a little load."""

import asyncio
import re

import httpx
import pytest

from tests.processes import PATIENCE, ROOT
from tests.server.streams import stream
from tests.servers import Server

# The selectors of TGI's board, panel by panel, without the label its scraper adds.
GRAFANA = """
tgi_request_queue_duration_bucket tgi_batch_inference_duration_bucket{method="prefill"}
tgi_batch_forward_duration_bucket{method="decode"} tgi_request_generated_tokens_sum tgi_request_generated_tokens_count
tgi_request_input_length_bucket tgi_request_generated_tokens_bucket tgi_request_success tgi_request_failure
tgi_request_mean_time_per_token_duration_bucket tgi_request_count tgi_queue_size tgi_batch_current_max_tokens
tgi_batch_current_size tgi_request_skipped_tokens_bucket tgi_request_duration_bucket tgi_batch_concat
tgi_batch_inference_duration_bucket{method="decode"} tgi_batch_decode_duration_bucket{method="decode"}
tgi_batch_filter_duration_bucket{method="decode"} tgi_batch_concat_duration_bucket{method="decode"}
"""
# vLLM's own board, the Gateway API's endpoint picker, KEDA and KServe guides.
VLLM = """
vllm:num_requests_waiting vllm:num_requests_running vllm:kv_cache_usage_perc vllm:cache_config_info{block_size="16"}
vllm:e2e_request_latency_seconds_bucket vllm:inter_token_latency_seconds_bucket vllm:time_to_first_token_seconds_bucket
vllm:request_time_per_output_token_seconds_bucket vllm:prompt_tokens_total vllm:generation_tokens_total
vllm:request_success_total{finished_reason="stop"} vllm:request_success_total{finished_reason="length"}
vllm:request_queue_time_seconds_sum vllm:request_prefill_time_seconds_sum vllm:request_decode_time_seconds_sum
vllm:request_inference_time_seconds_sum vllm:request_prompt_tokens_bucket vllm:request_generation_tokens_bucket
vllm:request_params_max_tokens_bucket vllm:request_params_n_bucket vllm:iteration_tokens_total_bucket
vllm:request_max_num_generation_tokens_bucket vllm:request_num_preemptions_bucket
vllm:num_requests_waiting_by_reason{reason="capacity"} vllm:prompt_tokens_by_source_total{source="local_compute"}
vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:num_preemptions_total
"""

DEPLOY = ROOT / "deploy"
QUERIES = (DEPLOY / "grafana" / "board.json").read_text() + (DEPLOY / "helm" / "alerts.yaml").read_text()
OURS = " ".join(sorted(set(re.findall(r"\b(?:tgi_|textgen_|vllm:)\w+", QUERIES))))

STREAMS = 20  # at most: a busy gateway gets several steps as one message, which tells of the last step only


def joined(server: Server) -> bool:
    """Whether a step is known in which a prompt joined a running request."""
    return any(name.startswith("tgi_batch_concat") for name in server.gauges())


async def samples(server: Server) -> dict[str, float]:
    """The series of /metrics after prompts joined a running request and a request was refused."""
    for _ in range(STREAMS):
        begun = asyncio.Event()
        running = asyncio.create_task(stream(server.url, "The river", 1500, begun))
        await begun.wait()
        while not (joined(server) or running.done()):
            await stream(server.url, "quick brown", 5)
        assert (await running).error is None
        if joined(server):
            break
    refused = httpx.post(server.url + "/generate", json={"inputs": ""}, timeout=PATIENCE)
    assert refused.status_code == 422
    return server.gauges()


@pytest.mark.parametrize("selectors", [GRAFANA, OURS, VLLM], ids=["TGI's board", "ours and alerts", "vLLM's consumers"])
async def test_every_query_finds_a_series(server: Server, selectors: str) -> None:
    found = await samples(server)
    for selector in selectors.split():
        name, _, label = selector.rstrip("}").partition("{")
        values = [value for its, value in found.items() if its.partition("{")[0] == name and label in its]
        assert values, f"{selector} finds nothing"
        assert max(values) > 0 or not name.endswith("_bucket"), f"{selector} has no observation"
