"""Samples, made from what is counted and what the engines last reported."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gateway.observability.counts import Counts
from gateway.observability.feed.increases import Increases, RecentShare
from gateway.observability.feed.lanes import Lanes
from gateway.observability.feed.sample import ReplicaSample, Sample, rounded
from gateway.observability.feed.window import Percentiles, Window
from gateway.observability.sink import Failure
from jaxengine.rpc import engine_pb2 as pb

WINDOW_SECONDS = 30.0  # of percentiles and of the share of prefix hits
FIRST_TOKEN, INTER_TOKEN = "textgen_time_to_first_token_seconds", "textgen_inter_token_seconds"
QUEUE, STEP = "tgi_request_queue_duration", "textgen_step_seconds"
HISTOGRAMS = (FIRST_TOKEN, INTER_TOKEN, QUEUE, STEP)
REQUESTS, ANSWERED, FAILED = "tgi_request_count", "tgi_request_success", "tgi_request_failure"
MOVES, RESTARTS = "textgen_request_moves", "textgen_engine_restarts"
SERIES = (*HISTOGRAMS, REQUESTS, ANSWERED, FAILED, MOVES, RESTARTS)  # that are read off the registry
FIRST_ELAPSED = 1.0  # seconds: there are no rates at the first look


@dataclass(frozen=True)
class Moment:
    """What a sample is made of.

    time: Unix time in seconds.
    elapsed: seconds since the moment before.
    counts: of `SERIES`.
    states: of the engines, by their numbers, as far as they are known.
    """

    time: float
    elapsed: float
    counts: Counts
    states: Mapping[int, str]


class Sampler:
    """
    Args:
        lanes: what the engines last reported.
        step_age: seconds since the step loop of an engine, by its number, last showed life.
    """

    def __init__(self, lanes: Lanes, step_age: Callable[[int], float]) -> None:
        self._lanes, self._step_age = lanes, step_age
        self._increases = Increases()
        self._window = Window(HISTOGRAMS, WINDOW_SECONDS)
        self._hits = RecentShare(WINDOW_SECONDS)
        self._last: float | None = None

    def sample(self, time: float, now: float, counts: Counts, states: Mapping[int, str]) -> Sample:
        """The sample at Unix time `time`, which is `now` in seconds of a monotonic clock."""
        elapsed = FIRST_ELAPSED if self._last is None else max(now - self._last, 1e-3)
        self._last = now
        moment = Moment(time, elapsed, counts, states)
        replicas = tuple(self._replica(moment, engine) for engine in sorted(self._lanes.stats))
        return self._whole(moment, replicas, self._window.advance(now, counts), self._prefix_hits(now))

    def _whole(
        self,
        moment: Moment,
        replicas: tuple[ReplicaSample, ...],
        latencies: Mapping[str, Percentiles | None],
        prefix_hits: float | None,
    ) -> Sample:
        counts, requests = moment.counts, int(moment.counts.total(REQUESTS))
        return Sample(
            time=round(moment.time, 2),
            requests=requests,
            answered=int(counts.total(ANSWERED)),
            rejected=_failures(counts, "overloaded", "unavailable"),
            invalid=_failures(counts, "validation", "template"),
            failed=_failures(counts, "generation", "incomplete"),
            dropped=_failures(counts, "dropped"),
            moves=int(counts.total(MOVES)),
            running=sum(each.running for each in replicas),
            waiting=sum(each.waiting for each in replicas),
            pages_used=sum(each.pages_used for each in replicas),
            pages_cached=sum(each.pages_cached for each in replicas),
            pages_total=sum(each.pages_total for each in replicas),
            prompt_tokens=sum(each.prompt_tokens for each in replicas),
            cached_tokens=sum(each.cached_tokens for each in replicas),
            generated_tokens=sum(each.generated_tokens for each in replicas),
            compiles=sum(each.compiles for each in replicas),
            restarts=sum(each.restarts for each in replicas),
            requests_per_second=self._rate(moment, REQUESTS, requests),
            prompt_tokens_per_second=_sum(each.prompt_tokens_per_second for each in replicas),
            generated_tokens_per_second=_sum(each.generated_tokens_per_second for each in replicas),
            prefix_hits=None if prefix_hits is None else rounded(prefix_hits),
            first_token_seconds=_rounded(latencies[FIRST_TOKEN]),
            inter_token_seconds=_rounded(latencies[INTER_TOKEN]),
            queue_seconds=_rounded(latencies[QUEUE]),
            step_seconds=_rounded(latencies[STEP]),
            step_age_seconds=max(
                (age for each in replicas if (age := each.step_age_seconds) is not None), default=None
            ),
            replicas=replicas,
        )

    def _replica(self, moment: Moment, engine: int) -> ReplicaSample:
        stats, prompt = self._lanes.stats[engine], _prompt_tokens(self._lanes.stats[engine])
        age = rounded(self._step_age(engine)) if engine in self._lanes.present else None
        return ReplicaSample(
            index=engine,
            state=moment.states.get(engine),
            running=stats.running,
            waiting=stats.waiting,
            pages_used=stats.pages_used,
            pages_cached=stats.pages_cached,
            pages_total=stats.pages_total,
            prompt_tokens_per_second=self._rate(moment, ("prompt", engine), prompt),
            generated_tokens_per_second=self._rate(moment, ("generated", engine), stats.generated_tokens),
            prompt_tokens=prompt,
            cached_tokens=stats.cached_prompt_tokens,
            generated_tokens=stats.generated_tokens,
            step_age_seconds=age,
            compiles=stats.compiles_after_warmup,
            restarts=int(moment.counts.total(RESTARTS, str(engine))),
        )

    def _rate(self, moment: Moment, counter: object, value: float) -> float | None:
        """The increase of a counter per second."""
        increase = self._increases.of(counter, value)
        return None if increase is None else rounded(increase / moment.elapsed)

    def _prefix_hits(self, now: float) -> float | None:
        """The share of the window's prompt tokens that were found in the prefix cache, of all engines."""
        whole = part = 0.0
        for engine, stats in self._lanes.stats.items():
            whole += self._increases.of(("asked", engine), _prompt_tokens(stats)) or 0.0
            part += self._increases.of(("found", engine), stats.cached_prompt_tokens) or 0.0
        return self._hits.advance(now, whole, part)


def _failures(counts: Counts, *causes: Failure) -> int:
    return int(sum(counts.total(FAILED, cause) for cause in causes))


def _prompt_tokens(stats: pb.Stats) -> int:
    """Those computed and those found in the prefix cache."""
    return stats.prompt_tokens + stats.cached_prompt_tokens


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(sum(known)) if known else None


def _rounded(values: Percentiles | None) -> Percentiles | None:
    if values is None:
        return None
    median, high, highest = values
    return rounded(median), rounded(high), rounded(highest)
