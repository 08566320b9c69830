"""Comparisons: intervals that hold what they promise, pairs that cancel what both suffered, and the gate."""

import math
import random
from pathlib import Path

import pytest

from gateway.benchmark import json_report
from gateway.benchmark.comparison import compare, differences, failures, interval, slower, student, undecided
from gateway.benchmark.comparison_table import rows
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.report import Level, Load, Report
from jaxengine.options.option import UsageError

LOAD = Load("concurrency", 8)


def report(rates: list[float], load: Load = LOAD, kind: str = "server") -> Report:
    runs = [{"output_tokens_per_second": rate, "ttft_ms": 1e4 / rate} for rate in rates]
    spread = Distribution.of(rates)
    assert spread is not None
    return Report(kind, {"Seed": "0"}, {"client": {"cpu": "one"}}, [Level(load, runs, {"itl_ms": spread})])


@pytest.mark.parametrize("pairs", [2, 3, 5, 10, 31, 60])
def test_the_interval_holds_the_true_ratio_in_95_of_100_trials(pairs: int) -> None:
    chance = random.Random(pairs)
    held = 0
    for _ in range(4000):
        _, low, high = interval([1.1 * math.exp(chance.gauss(0, 0.2)) for _ in range(pairs)])
        held += low <= 1.1 <= high
    assert held / 4000 == pytest.approx(0.95, abs=0.012)


def test_what_both_runs_suffered_cancels() -> None:
    """The machine is up to four times as slow in some runs, and B is 2 % faster in each."""
    slowness = [1.0, 4.0, 2.0, 1.5, 3.0]
    changes = compare(report([100 / each for each in slowness]), report([102 / each for each in slowness]))
    throughput = next(change for change in changes if change.measure == "output_tokens_per_second")
    assert throughput.ratio == pytest.approx(1.02) and throughput.sure
    assert throughput.low == pytest.approx(1.02) == pytest.approx(throughput.high)
    table = {row[1]: row[-1] for row in rows(changes)}
    assert table == {"output tokens/s": "B is better", "TTFT, ms": "B is better"}


def test_a_difference_within_the_noise_is_not_sure() -> None:
    changes = compare(report([100, 120, 90, 110]), report([110, 100, 100, 105]))
    assert not any(change.sure for change in changes)
    assert {row[-1] for row in rows(changes)} == {"no sure difference"}


def test_one_pair_has_no_interval() -> None:
    [change, _] = compare(report([100]), report([90]))
    assert (change.ratio, change.low, change.high, change.sure) == (0.9, 0.0, math.inf, False)
    assert "no interval" in rows([change])[0][4]


def test_the_gate_fails_where_it_is_sure_and_warns_where_it_is_not() -> None:
    surely = compare(report([100, 101, 99]), report([80, 81, 79]))
    assert slower(surely, 0.95) and not undecided(surely, 0.95)
    perhaps = compare(report([100, 120, 90]), report([85, 130, 70]))
    assert undecided(perhaps, 0.95) and not slower(perhaps, 0.95)
    assert not slower(surely, 0.7) and not undecided(surely, 0.7)


def test_a_rate_of_nothing_is_surely_slower_and_not_left_out() -> None:
    """Of one pair too; and the other way round there is nothing to be slower than."""
    for rates in ([100.0, 100.0, 0.0], [0.0, 0.0, 0.0], [0.0]):
        a, b = report([100.0] * len(rates)), report([1.0] * len(rates))
        for run, rate in zip(b.levels[0].runs, rates, strict=True):
            run["output_tokens_per_second"] = rate
        [change] = slower(compare(a, b), 0.5)
        assert (change.ratio, change.low, change.high, change.pairs) == (0, 0, 0, len(rates))
        assert "B is worse" in rows([change])[0]
        assert not slower(compare(b, a), 0.5)


def test_a_server_that_fails_is_told_though_no_ratio_tells() -> None:
    good = report([100.0, 101.0])
    assert failures(good, good) == []
    early = report([100.0, 101.0])
    early.failure = "it went away"
    assert failures(good, early) == ["B ended early: it went away"]
    assert failures(early, good) == ["A ended early: it went away"]
    more = report([100.0, 101.0])
    more.levels += report([1.0], Load("concurrency", 9)).levels
    assert failures(more, good) == ["only A has concurrency 9"]
    assert failures(good, more) == ["only B has concurrency 9"]
    failing = report([100.0, 101.0])
    failing.levels[0].failures, failing.levels[0].totals = {"refused": 3}, {"complete": 0.0}
    assert failures(good, failing) == [
        "only B has requests that ended refused at concurrency 8",
        "B has no complete answer at concurrency 8",
    ]
    assert failures(failing, good) == []


def test_parameters_that_differ_are_told() -> None:
    a, b = report([1.0]), report([1.0])
    b.parameters["Seed"] = "1"
    assert differences(a, b) == []
    a.parameters["Decode Length"], b.parameters["Decode Length"], b.parameters["SLO"] = "8", "16", "ttft=1ms"
    assert differences(a, b) == ["Decode Length is 8 in A and 16 in B", "SLO is - in A and ttft=1ms in B"]


@pytest.mark.parametrize(
    ("freedom", "point"), [(1, 12.7062), (30, 2.0423), (31, 2.0395), (40, 2.0211), (120, 1.9799), (10**6, 1.96)]
)
def test_students_points_go_on_behind_the_table(freedom: int, point: float) -> None:
    assert student(freedom) == pytest.approx(point, abs=5e-4)


def test_reports_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json_report.written(report([1.0, 2.0])))
    assert json_report.read(path) == report([1.0, 2.0])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_other_files_are_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"--compare .*a\.json is"):
        json_report.read(path)
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        json_report.read(tmp_path / "none.json")


def test_reports_without_a_load_in_common_are_refused() -> None:
    with pytest.raises(UsageError, match="no load in common"):
        compare(report([1.0]), report([1.0], Load("concurrency", 9)))
    with pytest.raises(UsageError, match="one report is of an engine, the other of a server"):
        compare(report([1.0]), report([1.0], kind="engine"))
