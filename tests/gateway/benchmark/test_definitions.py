"""The numbers of a report, computed again from raw moments with numpy, by the published definitions of vLLM's."""

import random

import numpy as np
import pytest

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.distribution import Distribution, percentile
from gateway.benchmark.report import Load
from gateway.benchmark.slo import Slo
from gateway.benchmark.summary import Run, level

LOAD = Load("concurrency", 4)


def timeline(chance: random.Random) -> Answer:
    """A complete answer of chunks that hold one to three tokens each."""
    start = chance.uniform(0, 9)
    gaps = [chance.uniform(0.001, 0.2) for _ in range(chance.randint(1, 40))]
    chunks = [start + float(moment) for moment in np.cumsum(gaps)]
    tokens = sum(chance.randint(1, 3) for _ in chunks)
    return Answer(start, chunks=chunks, prompt_tokens=7, output_tokens=tokens, counted=True, ended=True)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_and_deviation_are_numpys(seed: int) -> None:
    chance = random.Random(seed)
    numbers = [chance.expovariate(1) for _ in range(chance.randint(1, 300))]
    found = Distribution.of(numbers)
    assert found is not None
    expected = [np.mean(numbers), np.std(numbers), min(numbers), max(numbers), *np.percentile(numbers, [50, 90, 99])]
    shown = [found.mean, found.deviation, found.lowest, found.highest, found.p50, found.p90, found.p99]
    assert shown == pytest.approx(expected)
    assert percentile(sorted(numbers), 95) == pytest.approx(np.percentile(numbers, 95))


@pytest.mark.parametrize("seed", range(5))
def test_times_and_rates_are_those_of_vllms_benchmark(seed: int) -> None:
    chance = random.Random(seed)
    answers = [timeline(chance) for _ in range(30)]
    found = level(LOAD, [Run(answers, 12.5)], None)
    ttft = [answer.chunks[0] - answer.start for answer in answers]
    e2e = [answer.chunks[-1] - answer.start for answer in answers]
    tpot = [
        (last - first) / (answer.output_tokens - 1)
        for first, last, answer in zip(ttft, e2e, answers, strict=True)
        if answer.output_tokens > 1
    ]
    itl = np.concatenate([np.diff(answer.chunks) for answer in answers])
    for name, seconds in (("ttft_ms", ttft), ("e2e_ms", e2e), ("tpot_ms", tpot), ("itl_ms", itl)):
        shown = found.spread[name]
        expected = 1e3 * np.array([np.mean(seconds), np.median(seconds), np.std(seconds), np.percentile(seconds, 99)])
        assert [shown.mean, shown.p50, shown.deviation, shown.p99] == pytest.approx(expected), name
    tokens = sum(answer.output_tokens for answer in answers)
    assert found.totals["requests_per_second"] == pytest.approx(30 / 12.5)
    assert found.totals["output_tokens_per_second"] == pytest.approx(tokens / 12.5)
    assert found.totals["total_tokens_per_second"] == pytest.approx((tokens + 7 * 30) / 12.5)


def test_failed_requests_count_in_no_time_and_no_rate() -> None:
    good = Answer(0.0, chunks=[1.0, 2.0], output_tokens=2, counted=True)
    bad = Answer(0.0, chunks=[50.0, 90.0], output_tokens=40, outcome=Outcome.BROKEN, detail="it broke")
    rejected = Answer(0.0, outcome=Outcome.REJECTED, detail="429")
    found = level(LOAD, [Run([good, bad, rejected], 10.0)], Slo.parse("ttft=2s"))
    assert found.spread["ttft_ms"].highest == 1000
    assert found.totals["output_tokens_per_second"] == 0.2
    assert (found.totals["complete"], found.totals["rejected"]) == (1, 1)
    assert found.failures == {"broken": 1, "rejected": 1}
    assert found.examples == {"broken": "it broke", "rejected": "429"}
    assert found.totals["good_share"] == pytest.approx(1 / 3), "what failed is not good"


def test_runs_are_kept_apart_and_pooled() -> None:
    runs = [Run([Answer(0.0, chunks=[seconds], output_tokens=1)], 1.0) for seconds in (0.1, 0.3)]
    found = level(LOAD, runs, None)
    assert [run["ttft_ms"] for run in found.runs] == pytest.approx([100, 300])
    assert found.spread["ttft_ms"].mean == pytest.approx(200)
    assert found.totals["requests_per_second"] == 1


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    found = level(LOAD, [Run([Answer(0.0, chunks=[0.1], output_tokens=1)], 1.0)], None)
    assert "tpot_ms" not in found.spread and "itl_ms" not in found.spread


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ("ttft=101ms", True),
        ("ttft=99ms", False),
        ("e2e=0.601s", True),
        ("e2e=599ms", False),
        ("tpot=101ms", True),
        ("tpot=99ms", False),
        ("itl=201ms", True),
        ("itl=150ms", False),
        ("ttft=1s,itl=150ms", False),
    ],
)
def test_an_answer_is_good_if_it_keeps_every_limit(slo: str, good: bool) -> None:
    answer = Answer(0.0, chunks=[0.1, 0.2, 0.3, 0.4, 0.6], output_tokens=6, counted=True)
    assert Slo.parse(slo).met(answer) is good


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "ttft=0ms", "latency=5ms", "ttft=1s,ttft=2s", "ttft=-1s"])
def test_an_slo_that_says_nothing_clear_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be like ttft=500ms"):
        Slo.parse(text)
