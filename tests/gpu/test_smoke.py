"""The GPU suite's scripts, at tiny shapes on whatever device there is, so that they run on the day a GPU is lent."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.gpu import counters, decode, families, kernels, report, trace
from tests.gpu.answers import NEW, PROMPTS, Variant, answering
from tests.gpu.correctness import NEAR_TIE, wrong_tokens
from tests.gpu.record import Record, read
from tests.gpu.scale import FULL, TINY, Scale
from tests.gpu.sections import ROOT, SECTIONS, spawn
from tests.gpu.steptime import StepTimes
from tests.gpu.weights import RandomSource

ABSENT_ON_A_BARE_GPU_MACHINE = (
    "gguf",
    "grpc",
    "llguidance",
    "tokenizers",
    "transformers",
    "torch",
    "fastapi",
    "convert",
    "gateway",
)


def python(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_one_command_measures_and_writes_its_tables(tmp_path: Path) -> None:
    sections = [name for name in SECTIONS if name not in ("restart", "peers")]
    done = python(
        *("-m", "tests.gpu.run", "--scale", "smoke", "--out", str(tmp_path), "--commit", "c0ffee"),
        *("--minutes", "25", "--only", *sections),
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = tmp_path.glob("*.json")
    tables = json.loads(results.read_text())
    assert {"correctness", "ceilings", "starts", "prefill", "decode", "loads", "counters", "skipped"} <= tables.keys()
    assert all(
        row["seconds"] > 0 and row["share"] > 0 for row in [*tables["decode"], *tables["prefill"], *tables["experts"]]
    )
    assert {(row["weights"], row["cache"]) for row in tables["decode"] if row["model"] == "tiny"} == {
        ("float32", "float32"), ("int8", "float32"), ("float32", "fp8_e4m3fn")
    }  # fmt: skip
    assert {row["model"] for row in tables["decode"]} == {"tiny", "states"}
    assert not (tmp_path / "rows.jsonl").exists()
    assert tables["counters"][0]["compiles_after_warmup"] == 0
    assert tables["run"][0]["commit"] == "c0ffee"
    page = results.with_suffix(".md").read_text()
    assert all(f"## {title}" in page for name, (title, _) in report.MARKDOWN.items() if name in tables)


def test_what_the_time_does_not_hold_is_recorded(tmp_path: Path) -> None:
    assert spawn("llama", "smoke", tmp_path / "rows", 0.5) == "stopped after 0.5 s"
    done = python("-m", "tests.gpu.run", "--scale", "smoke", "--out", str(tmp_path), "--minutes", "0")
    assert done.returncode == 1
    (results,) = tmp_path.glob("*.json")
    errors = json.loads(results.read_text())["errors"]
    assert errors == [{"part": name, "error": "no time left"} for name in SECTIONS]


def test_a_killed_run_leaves_rows_that_become_tables(tmp_path: Path) -> None:
    record = Record(tmp_path / "rows.jsonl")
    record.add("run", started="2026-01-02-0304", scale="full", **report.identity("c0ffee"))
    record.add("ceilings", what="copy", unit="byte", rate=4e12)
    done = python("-m", "tests.gpu.report", str(record.path))
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("2026-01-02-0304-*-c0ffee.md")
    assert "| copy | 4.00 | byte |" in page.read_text()


def test_a_section_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    record = Record(tmp_path / "rows")
    with record.part("broken"):
        raise ValueError("no such thing\nand more")
    with record.part("sound"):
        record.add("ceilings", rate=1)
    tables = read(record.path)
    assert tables["errors"] == [{"part": "broken", "error": "ValueError: no such thing"}]
    assert [row["part"] for row in tables["parts"]] == ["broken", "sound"]
    assert tables["ceilings"] == [{"rate": 1}]


def test_engine_and_measurements_need_nothing_but_jax_flax_and_numpy() -> None:
    modules = (
        "jaxengine.engine.engine",
        "tests.gpu.run",
        *(section.module for name, section in SECTIONS.items() if name != "peers"),
    )
    blocked = f"import sys; sys.modules.update(dict.fromkeys({ABSENT_ON_A_BARE_GPU_MACHINE}))"
    done = python("-c", "; ".join([blocked, *(f"import {module}" for module in modules)]))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", kernels.CASES, ids=lambda case: case.name)
def test_the_kernel_check_passes_what_is_right(case: kernels.Case) -> None:
    assert kernels.error("reference", case, "float32") < kernels.LIMITS["float32"]


def test_the_kernel_check_catches_an_attention_that_ignores_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_key_short(*arguments, spec):  # type: ignore[no-untyped-def]
        *before, batch, heads = arguments
        return reference.attend(*before, replace(batch, position=batch.position - 1), heads, spec=spec)

    reference = kernels.BACKENDS["reference"]
    monkeypatch.setitem(kernels.BACKENDS, "reference", replace(reference, attend=one_key_short))
    assert not kernels.error("reference", kernels.CASES[3], "float32") < kernels.LIMITS["bfloat16"]


def test_shares_and_ratios_follow_from_the_ceilings() -> None:
    tables = {
        "ceilings": [{"unit": "byte", "rate": 4e12}, {"unit": "operation", "rate": 8e14}],
        "decode": [{"tokens": 8, "seconds": 0.01, "bytes": 2e10, "operations": 1e11}],
        "loads": [
            {"load": "a", "engine": report.OURS, "seconds": 2.0, "tokens": 100},
            {"load": "a", "engine": "peer", "seconds": 7.0, "tokens": 100},
        ],
    }
    report.derive(tables)
    assert tables["decode"][0]["tokens_per_second"] == pytest.approx(800)
    assert tables["decode"][0]["share"] == pytest.approx(0.5)
    assert tables["loads"][1]["ours_is_faster_by"] == pytest.approx(3.5)


@pytest.mark.parametrize("scale", families.full(FULL), ids=lambda scale: scale.model)
def test_every_family_is_measured_by_buckets_of_its_own_sizes(scale: Scale) -> None:
    limits = scale.limits
    assert limits.decode_buckets == scale.decode_rows
    assert limits.max_total_tokens >= max(scale.contexts) + scale.growth
    assert limits.encode_buckets == (scale.prefills if scale.spec.encoder else ())
    cost = decode.cost(scale, scale.decode_rows[-1], max(scale.contexts), None, scale.itemsize)
    assert 10e9 < cost["bytes"] < 100e9


def event(name: str, start: float, duration: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, start_ns=start, duration_ns=duration)


def test_a_trace_counts_overlapping_streams_once_and_ranks_kernels() -> None:
    streams = [
        SimpleNamespace(name="Stream #7(Kernel)", events=[event("gemm", 0, 60), event("norm", 80, 20)]),
        SimpleNamespace(name="Stream #8(MemcpyD2H)", events=[event("copy", 50, 20)]),
        SimpleNamespace(name="XLA Ops", events=[event("fusion.1", 0, 100)]),
    ]
    calls = [event(name, 0, 900) for name in ("python", "cuGraphLaunch:7", "cuGraphLaunch:8", "cuMemcpyDtoHAsync")]
    host = SimpleNamespace(name="/host:CPU", lines=[SimpleNamespace(name="Stream #1", events=calls)])
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/device:GPU:0", lines=streams), host])
    spans = list(trace.device_spans(profile))
    assert trace.busy_ns(spans) == 70 + 20
    assert list(trace.gaps_ns(spans)) == [10]
    ranked = trace.slowest(spans)
    assert [row["kernel"] for row in ranked] == ["gemm", "norm", "copy"]
    assert ranked[0]["share"] == pytest.approx(0.6)
    assert trace.driver_calls(profile) == {"cuGraphLaunch": 2, "cuMemcpyDtoHAsync": 1}


def test_what_launches_a_step_is_told_by_name_without_its_numbers() -> None:
    calls = [event("cuGraphLaunch (CudaGraph:8)", 0, 300), event("command_buffer::update#device=0,num=4#", 0, 500)]
    threads = [SimpleNamespace(name="python3", events=calls * 2), SimpleNamespace(name="pjrt_async", events=calls)]
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/host:CPU", lines=threads)])
    told = [(row["event"], row["calls"] * trace.STEPS) for row in trace.launching(profile)]
    assert told == [("command_buffer::update", 2), ("cuGraphLaunch", 2)]


def test_counters_are_read_as_ncu_writes_them() -> None:
    text = """==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum","smsp__issue_active.avg.pct_of_peak_sustained_elapsed","sm__pipe_new"
"","","nsecond","%",""
"0","grouped_product","28,736","31.5","1"
"1","grouped_product__2","9001","n/a",""
"""
    assert list(counters.read(text)) == [
        {"seconds": pytest.approx(28.736e-6), "issued": 31.5},
        {"seconds": pytest.approx(9.001e-6)},
    ]


def test_a_greedy_token_may_differ_only_at_a_near_tie() -> None:
    exact = {f"ids_{n}": np.zeros(NEW, np.int32) for n in range(len(PROMPTS))}
    logprobs = np.tile(np.float32([0, -NEAR_TIE / 2, -2]), (PROMPTS[0] - 1 + NEW, 1))
    exact |= {f"logprobs_{n}": logprobs for n in range(len(PROMPTS))}
    for token, wrong in ((0, 0), (1, 0), (2, 1)):
        ours = {**exact, "ids_0": np.array([0, token] * (NEW // 2))}
        assert wrong_tokens(ours, exact) == wrong


def test_what_a_cpu_has_answered_is_not_asked_again(tmp_path: Path) -> None:
    variant = Variant("no such model", "reference", "float32")
    np.savez(tmp_path / f"{variant}.npz", ids_0=np.arange(3))
    with answering([variant], known=tmp_path) as answers:
        assert answers.of(variant)["ids_0"].tolist() == [0, 1, 2]
    with answering([variant]) as answers, pytest.raises(RuntimeError, match="no such model"):
        answers.of(variant)


def test_a_device_that_is_waited_for_is_not_idle() -> None:
    times = StepTimes(wall=[4.0, 4.0], waited=[3.0, 0.0], starved=[False, True])
    assert times.host == [1.0, 4.0]
    assert times.idle_at_most == pytest.approx(0.5)


def test_random_weights_are_the_same_by_slice() -> None:
    whole = RandomSource(TINY).read("layers.0.down", (slice(None), slice(None)))
    part = RandomSource(TINY).read("layers.0.down", (slice(3, 9), slice(5)))
    np.testing.assert_array_equal(whole[3:9, :5], part)
