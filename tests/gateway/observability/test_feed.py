"""The feed of the dashboard: what its samples say, how many are kept, and how those who watch are served."""

import asyncio
import dataclasses
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from gateway.errors import Kind, RequestError
from gateway.observability.counts import Counts
from gateway.observability.feed import feed as feed_module
from gateway.observability.feed.feed import KEPT, MAX_WATCHERS, Feed
from gateway.observability.feed.increases import Increases, RecentShare
from gateway.observability.feed.sample import FIELDS, REPLICA_FIELDS, ReplicaSample, Sample
from gateway.observability.feed.window import SHARES, Window, percentiles
from gateway.observability.metrics import Metrics
from gateway.observability.vllm_metrics import FIRST_TOKEN_SECONDS
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.observability.test_metrics import REQUEST
from tests.gateway.observability.test_replica_metrics import BUSY, CALM, ENGINE, samples
from tests.processes import PATIENCE, ROOT

BOUNDS = (*FIRST_TOKEN_SECONDS, math.inf)


def buckets(values: "np.ndarray[Any, Any]") -> dict[float, float]:
    edges = np.array([0, *BOUNDS])
    return dict(zip(BOUNDS, np.histogram(values, edges)[0].astype(float), strict=True))


def busy(replicas: int = 2) -> tuple[Metrics, Feed]:
    states = {0: "ready", 1: "draining"}
    metrics = Metrics(step_age=lambda engine: 0.25 + engine)
    feed = Feed(metrics, lambda: states)
    for engine, stats in zip(range(replicas), (BUSY, CALM), strict=False):
        metrics.engine_ready(engine, ENGINE, 32)
        metrics.observe_step(engine, stats)
    return metrics, feed


def told(event: bytes) -> tuple[str, Any]:
    """The name of an event and its JSON, which has no NaN."""
    name, data, *rest = event.decode().split("\n")
    assert rest == ["", ""]

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "), parse_constant=refuse)


async def newest(feed: Feed) -> dict[str, Any]:
    """The sample that the feed takes now, as one who watches gets it."""
    watching = feed.watch()
    await anext(watching)
    feed.sample()
    name, sample = told(await anext(watching))
    await watching.aclose()
    assert name == "sample"
    return dict(sample)


@pytest.mark.parametrize("seed", range(4))
def test_percentiles_lie_within_the_bucket_of_those_that_numpy_finds(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(-3, 1, size=5000)
    found = percentiles(buckets(values))
    assert found is not None
    for ours, exact in zip(found, np.quantile(values, SHARES), strict=True):
        place = np.searchsorted(BOUNDS, exact)
        assert (0, *BOUNDS)[place] <= ours <= BOUNDS[place]


def test_percentiles_are_exact_where_values_are_spread_evenly_over_a_bucket() -> None:
    values = np.linspace(0.5, 0.75, 10_001)[1:]
    assert percentiles(buckets(values)) == pytest.approx(np.quantile(values, SHARES), rel=1e-4)


def test_what_is_beyond_the_last_bound_counts_as_that_bound_and_nothing_has_no_percentile() -> None:
    assert percentiles({1.0: 0.0, 2.0: 0.0, math.inf: 3.0}) == (2.0, 2.0, 2.0)
    assert percentiles({1.0: 0.0, math.inf: 0.0}) is None and percentiles({}) is None


def counted(**observations: float) -> Counts:
    counts = Counts()
    for bound, number in observations.items():
        counts.add("h", float(bound.removeprefix("le")), number)
    return counts


def test_a_window_forgets_what_is_older_than_it() -> None:
    window = Window(["h"], 30.0)
    assert window.advance(0.0, counted(le1=100, le2=0))["h"] is None  # what was counted before is no news
    slow = window.advance(1.0, counted(le1=100, le2=10))["h"]
    assert slow is not None and slow[0] == 1.5
    assert window.advance(31.0, counted(le1=100, le2=10))["h"] is None
    fast = window.advance(32.0, counted(le1=110, le2=10))["h"]
    assert fast is not None and fast[0] == 0.5


def test_a_counter_that_falls_began_anew() -> None:
    increases = Increases()
    assert [increases.of("a", value) for value in (5, 7, 7, 2, 3)] == [None, 2, 0, 2, 1]


def test_a_share_is_of_what_was_lately() -> None:
    share = RecentShare(30.0)
    assert share.advance(0.0, 0, 0) is None
    assert share.advance(1.0, 100, 25) == 0.25
    assert share.advance(2.0, 100, 75) == 0.5
    assert share.advance(31.5, 0, 0) == 0.75
    assert share.advance(40.0, 0, 0) is None


async def test_a_sample_says_what_a_scrape_says() -> None:
    metrics, feed = busy()
    metrics.request_received()
    metrics.request_succeeded(REQUEST)
    for cause in ("overloaded", "unavailable", "validation", "template", "generation", "incomplete", "dropped"):
        metrics.request_failed(cause)  # type: ignore[arg-type]
    metrics.engine_restarted(1, "hung")
    metrics.request_moved("lost")
    sample, scrape = await newest(feed), samples(metrics)
    assert sample["requests"] == scrape["tgi_request_count"] == sample["answered"] == scrape["tgi_request_success"] == 1
    assert (sample["rejected"], sample["invalid"], sample["failed"], sample["dropped"]) == (2, 2, 2, 1)
    assert sample["running"] == scrape["tgi_batch_current_size"] == 6
    assert sample["waiting"] == scrape["tgi_queue_size"] == 3
    for field, name in (("prompt_tokens", "vllm:prompt_tokens"), ("generated_tokens", "vllm:generation_tokens")):
        of_each = [scrape[f'{name}_total{{engine="{engine}",model_name="m"}}'] for engine in (0, 1)]
        assert [each[field] for each in sample["replicas"]] == of_each and sample[field] == sum(of_each)
    assert sample["cached_tokens"] == 300 and sample["moves"] == 1 and sample["restarts"] == 1
    for engine, each in enumerate(sample["replicas"]):
        pages = [scrape[f'textgen_kv_pages{{engine="{engine}",state="{state}"}}'] for state in ("used", "cached")]
        assert [each["pages_used"], each["pages_cached"]] == pages
        assert each["step_age_seconds"] == scrape[f'textgen_last_step_age_seconds{{engine="{engine}"}}']
    assert [each["state"] for each in sample["replicas"]] == ["ready", "draining"]
    assert sample["step_age_seconds"] == 1.25


async def test_rates_and_latencies_are_of_what_came_since(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(feed_module.time, "monotonic", lambda: clock[0])
    metrics, feed = busy()
    first = await newest(feed)
    assert first["requests_per_second"] is first["first_token_seconds"] is first["prefix_hits"] is None
    clock[0] += 2.0
    for _ in range(6):
        metrics.request_received()
        metrics.first_token(0.15)
    metrics.observe_step(0, pb.Stats(prompt_tokens=730, cached_prompt_tokens=310, generated_tokens=190))
    metrics.observe_step(1, pb.Stats(prompt_tokens=4, generated_tokens=10))  # it has restarted
    then = await newest(feed)
    assert then["requests_per_second"] == 3 and then["prompt_tokens_per_second"] == 22
    assert [each["generated_tokens_per_second"] for each in then["replicas"]] == [50, 1]  # 8 before the restart
    assert then["prefix_hits"] == round(10 / 44, 4)
    assert then["first_token_seconds"] == [0.175, 0.2425, 0.2485]  # between the bounds 0.1 and 0.25
    assert then["inter_token_seconds"] is None


async def test_an_engine_that_is_lost_does_nothing_and_has_no_age() -> None:
    metrics, feed = busy()
    metrics.engine_lost(0)
    sample = await newest(feed)
    lost, other = sample["replicas"]
    assert (lost["running"], lost["pages_total"], lost["step_age_seconds"]) == (0, 0, None)
    assert lost["prompt_tokens"] == 1000 and sample["running"] == other["running"] == 1
    metrics.engine_ready(0, ENGINE, 32)
    assert (await newest(feed))["replicas"][0]["pages_total"] == 100


async def test_before_any_engine_has_answered_there_is_one_lane_and_every_field() -> None:
    sample = await newest(Feed(Metrics(), dict))
    assert tuple(sample) == FIELDS and tuple(sample["replicas"][0]) == REPLICA_FIELDS
    assert sample["step_age_seconds"] is sample["replicas"][0]["state"] is None


async def test_the_history_has_the_values_of_every_sample_by_the_fields_that_it_names() -> None:
    _, feed = busy()
    live = [await newest(feed) for _ in range(3)]
    watching = feed.watch()
    name, history = told(await anext(watching))
    assert name == "history" and (history["interval_seconds"], history["window_seconds"]) == (1, 30)
    rows = [dict(zip(history["fields"], row, strict=True)) for row in history["rows"]]
    for row in rows:
        row["replicas"] = [dict(zip(history["replica_fields"], each, strict=True)) for each in row["replicas"]]
    assert rows == live
    await watching.aclose()


def test_every_field_is_documented() -> None:
    for kind in (Sample, ReplicaSample):
        assert kind.__doc__ is not None
        for field in dataclasses.fields(kind):
            assert f"{field.name}:" in kind.__doc__ or f"{field.name}," in kind.__doc__, field.name
    manual = (ROOT / "docs" / "pages.md").read_text()
    assert [name for name in FIELDS if f"`{name}`" not in manual] == []


async def test_ten_minutes_are_kept_and_no_more() -> None:
    _, feed = busy(1)
    for _ in range(KEPT + 5):
        feed.sample()
    watching = feed.watch()
    _, history = told(await anext(watching))
    assert len(history["rows"]) == history["kept"] == KEPT == 600
    await watching.aclose()


async def test_who_reads_slowly_gets_the_newest_sample_and_no_queue() -> None:
    metrics, feed = busy()
    watching = feed.watch()
    await anext(watching)
    for _ in range(50):
        metrics.request_received()
        feed.sample()
    assert told(await anext(watching))[1]["requests"] == 50
    following = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    assert not following.done()
    feed.sample()
    assert told(await following)[1]["requests"] == 50
    await watching.aclose()


async def test_all_who_watch_share_one_sample() -> None:
    _, feed = busy()
    watching = [feed.watch() for _ in range(3)]
    for each in watching:
        await anext(each)
    feed.sample()
    first, *others = [await anext(each) for each in watching]
    assert all(each is first for each in others)
    for each in watching:
        await each.aclose()


async def ends(watching: AsyncGenerator[bytes, None]) -> bool:
    return [each async for each in watching] == []


async def test_closing_ends_those_who_watch_at_once_and_takes_nobody_else() -> None:
    _, feed = busy()
    running = asyncio.create_task(feed.run())
    watching = feed.watch()
    await anext(watching)
    ending = asyncio.create_task(ends(watching))
    await asyncio.sleep(0)
    feed.close()
    await asyncio.wait_for(ending, PATIENCE)
    with pytest.raises(RequestError) as refused:
        await anext(feed.watch())
    assert refused.value.kind is Kind.UNAVAILABLE
    await asyncio.wait_for(running, PATIENCE)


async def test_too_many_are_refused_until_one_has_left() -> None:
    _, feed = busy()
    watching = [feed.watch() for _ in range(MAX_WATCHERS)]
    for each in watching:
        await anext(each)
    with pytest.raises(RequestError) as refused:
        await anext(feed.watch())
    assert refused.value.kind is Kind.UNAVAILABLE and refused.value.retry_after
    await watching.pop().aclose()
    another = feed.watch()
    await anext(another)
    for each in (*watching, another):
        await each.aclose()


async def test_samples_that_fail_are_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "INTERVAL", 0.01)
    _, feed = busy()
    sample, failed = feed.sample, 0

    def fail() -> None:
        nonlocal failed
        failed += 1
        raise RuntimeError("broken")

    monkeypatch.setattr(feed, "sample", fail)
    running = asyncio.create_task(feed.run())
    watching = feed.watch()
    await anext(watching)
    while failed < 3:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(feed, "sample", sample)
    assert told(await asyncio.wait_for(anext(watching), PATIENCE))[0] == "sample"
    assert caplog.text.count("the feed of the dashboard has no samples") == 1
    feed.close()
    await asyncio.wait_for(running, PATIENCE)
    await watching.aclose()
