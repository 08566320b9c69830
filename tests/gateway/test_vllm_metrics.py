"""vLLM's series: labels, values and buckets."""

import itertools
import math
import re

from gateway.metrics import Metrics
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve

SAMPLE = re.compile(r"^([a-z0-9_:]+)(?:{(.*)})? (\S+)$")


async def scraped() -> list[tuple[str, str, float]]:
    """Name, labels and value of every sample after requests of each kind and steps of both."""
    async with serve() as served:
        metrics = served.gateway.metrics
        assert served.engine.description is not None
        metrics.engine_ready(served.engine.description, served.gateway.max_input_tokens)
        await served.post("/generate", inputs="lo")
        await served.post("/generate", inputs="")
        await served.post("/v1/completions", prompt="lo", max_tokens=2, n=2)
        prefill = pb.Stats(step_prefill_tokens=8, step_decode_tokens=1, step_seconds=0.01, prompt_tokens=6)
        prefill.cached_prompt_tokens, prefill.pages_total, prefill.pages_used = 2, 8, 2
        metrics.observe_step(prefill)
        prefill.step_prefill_tokens = 0
        metrics.observe_step(prefill)
        text = (await served.http.get("/metrics")).text
    matches = [SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(matches), "a line that Prometheus cannot read"
    return [(match[1], match[2] or "", float(match[3])) for match in matches if match]


async def test_vllms_series_carry_the_model_and_say_what_happened() -> None:
    samples = {(name, labels): value for name, labels, value in await scraped()}
    model = 'engine="0",model_name="mock/model"'
    assert samples["vllm:kv_cache_usage_perc", model] == 0.25
    assert samples["vllm:prompt_tokens_total", model] == 8
    assert samples["vllm:prefix_cache_hits_total", model] == 2
    ended = {
        reason: samples["vllm:request_success_total", f'engine="0",finished_reason="{reason}",model_name="mock/model"']
        for reason in ("stop", "length", "abort", "error")
    }
    assert ended == {"stop": 1, "length": 2, "abort": 0, "error": 1}
    assert samples["vllm:request_params_n_count", model] == 2


async def test_three_millisecond_steps_can_be_told_apart() -> None:
    samples = await scraped()
    for name in ("vllm:inter_token_latency_seconds_bucket", "textgen_inter_token_seconds_bucket"):
        bounds = sorted({float(re.findall(r'le="([^"]+)"', labels)[0]) for its, labels, _ in samples if its == name})
        around = [bound for bound in bounds if 0.002 <= bound <= 0.004]
        assert all(b - a <= 0.00051 for a, b in itertools.pairwise(around)) and len(around) >= 5
        assert bounds[-1] == math.inf


def test_a_strange_model_name_cannot_break_a_line() -> None:
    metrics = Metrics()
    metrics.engine_ready(pb.Description(model_id='a"b\\c\nd', max_total_tokens=64, page_size=16), 32)
    lines = metrics.render(named=True).decode().splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="a\\"b\\\\c\\nd"} 0.0' in lines
