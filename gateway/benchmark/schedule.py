"""When the requests of an open loop are due."""

import random
from collections.abc import Iterator


def arrivals(rate: float, burstiness: float, chance: random.Random) -> Iterator[float]:
    """Seconds after the start of each request, without end; the first at the first interval's end.

    Intervals have a gamma distribution of mean 1 / rate and shape `burstiness`: with 1 the requests are a Poisson
    process, with less they come in bursts, with more they come evenly.
    """
    due = 0.0
    while True:
        due += chance.gammavariate(burstiness, 1 / (rate * burstiness))
        yield due


def scheduled(rate: float, burstiness: float, seed: int, requests: int | None, duration: float | None) -> list[float]:
    """Those of one run: so many `requests`, or all that are due within `duration` seconds, at least one.

    The times of so many requests are stretched so that their rate is exact, as `vllm bench serve` does: the last of 100
    at 4 a second is due after 25 seconds.
    """
    times = arrivals(rate, burstiness, random.Random(seed))
    if duration is None:
        assert requests is not None, "a run has an end"
        drawn = [next(times) for _ in range(requests)]
        return [each * requests / rate / drawn[-1] for each in drawn]
    due = [next(times)]
    while (later := next(times)) <= duration:
        due.append(later)
    return due
