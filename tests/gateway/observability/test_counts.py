"""What is counted, read without a scrape: the same numbers, of one process or of several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.observability.counts import Counts
from gateway.observability.feed.sampler import FAILED, FIRST_TOKEN, RESTARTS, SERIES, STEP
from gateway.observability.metrics import Metrics
from gateway.observability.tally import CountedFile, SharedTally
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.observability.test_metrics import REQUEST
from tests.gateway.observability.test_replica_metrics import samples
from tests.processes import ROOT

SECONDS = (0.0004, 0.003, 0.003, 0.7, 9000.0)  # the last beyond every bound


def busy(metrics: Metrics) -> Metrics:
    """Count something in every series that is read."""
    metrics.engine_restarted(0, "died")
    for cause in ("overloaded", "overloaded", "dropped"):
        metrics.request_failed(cause)  # type: ignore[arg-type]
    metrics.request_received()
    metrics.request_succeeded(REQUEST)
    metrics.request_moved("lost")
    for seconds in SECONDS:
        metrics.first_token(seconds)
        metrics.next_token(seconds)
        metrics.observe_step(0, pb.Stats(step_seconds=seconds, step_prefill_tokens=int(seconds > 1)))
    return metrics


def shown(scrape: dict[str, float]) -> dict[str, dict[float, float]]:
    """The buckets of the histograms that are read, as a scrape shows them: cumulative, over all labels."""
    found: dict[str, dict[float, float]] = {name: {} for name in SERIES}
    for key, value in scrape.items():
        name = key.partition("_bucket{")[0]
        if name in found and "le=" in key:
            bound = float(key.partition('le="')[2].partition('"')[0])
            found[name][bound] = found[name].get(bound, 0) + value
    return {name: buckets for name, buckets in found.items() if buckets}


def cumulative(counts: Counts) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for name in SERIES:
        total = 0.0
        for bound, value in counts.buckets(name).items():
            total += value
            found.setdefault(name, {})[bound] = total
    return found


def test_one_process_reads_what_a_scrape_shows() -> None:
    metrics = busy(Metrics())
    counts, scrape = metrics.tally(SERIES).read(), samples(metrics)
    assert cumulative(counts) == shown(scrape)
    assert counts.total(FAILED, "overloaded") == scrape['tgi_request_failure{err="overloaded"}'] == 2
    assert counts.total(FAILED) == 3 and counts.total(RESTARTS, "0") == 1 and counts.total(RESTARTS, "1") == 0
    assert sum(counts.buckets(STEP).values()) == len(SECONDS)  # of both methods


def test_a_series_that_counted_nothing_has_no_observation() -> None:
    counts = Metrics().tally(SERIES).read()
    assert counts.total(RESTARTS) == 0 and sum(counts.buckets(FIRST_TOKEN).values()) == 0


PROCESS = """
import os, sys
from pathlib import Path
from gateway.observability.feed.sampler import SERIES
from gateway.observability.metrics import Metrics
from tests.gateway.observability.test_counts import busy, cumulative, shown
from tests.gateway.observability.test_replica_metrics import samples

shared = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
metrics = Metrics(shared)
tally = metrics.tally(SERIES)
for _ in range(2):  # later reads search only what has been added
    before = tally.read()
    busy(metrics)
counts, scrape = tally.read(), samples(metrics)
assert cumulative(counts) == shown(scrape)
assert counts.total("tgi_request_count") == before.total("tgi_request_count") + 1 == scrape["tgi_request_count"]
assert counts.total("tgi_request_failure", "dropped") == scrape['tgi_request_failure{err="dropped"}']
print(int(counts.total("tgi_request_count")))
"""


def test_several_processes_are_summed_also_those_that_have_ended(tmp_path: Path) -> None:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    told = []
    for _ in range(3):
        command = [sys.executable, "-c", PROCESS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip())
    assert told == ["2", "4", "6"]
    assert SharedTally(tmp_path, SERIES).read().total("tgi_request_count") == 6


@pytest.mark.parametrize("size", [0, 65536])
def test_a_file_that_was_just_made_counts_nothing_yet(tmp_path: Path, size: int) -> None:
    path = tmp_path / "counter_1.db"
    path.write_bytes(b"\0" * size)
    counts, file = Counts(), CountedFile(path, SERIES)
    file.add_to(counts)
    assert counts.total("tgi_request_count") == 0
