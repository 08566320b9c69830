"""The sweep: how many users a server serves. Twice as many each time until goodput falls, then closer to the knee.

Where nothing is good, more users would not be served better: that ends it too.
"""

from collections.abc import Awaitable, Callable, Sequence

from gateway.benchmark.report import Level

GROWTH = 1.02  # of goodput, without which more users are of no use: less is noise
MOST_USERS = 4096
CLOSENESS = 8  # the knee is told to one part in so many

Measure = Callable[[int], Awaitable[Level]]


async def sweep(measure: Measure, needed: float | None) -> list[Level]:
    """Levels in ascending order. `needed` is the share of answers that must be good; None without an SLO."""
    levels: list[Level] = []
    best, users = 0.0, 1
    while users <= MOST_USERS:
        levels.append(level := await measure(users))
        if goodput(level) == 0 or (levels[1:] and goodput(level) < best * GROWTH):
            break
        best = max(best, goodput(level))
        users *= 2
    if needed is not None:
        await _narrow(levels, measure, needed)
    return sorted(levels, key=lambda level: level.load.value)


async def _narrow(levels: list[Level], measure: Measure, needed: float) -> None:
    """Halve the way between the highest load that is served and the lowest above that is not."""
    while (low := knee(levels, needed)) is not None:
        above = [each.load.value for each in levels if each.load.value > low]
        if not above or min(above) - low <= max(1, low // CLOSENESS):
            return
        levels.append(await measure(int(low + min(above)) // 2))


def knee(levels: Sequence[Level], needed: float) -> float | None:
    """The highest load below which, as itself, every one is served: `needed` of its answers are good. None: not one."""
    found = None
    for level in sorted(levels, key=lambda level: level.load.value):
        if level.totals["good_share"] < needed:
            break
        found = level.load.value
    return found


def goodput(level: Level) -> float:
    """Good answers a second; without an SLO complete ones."""
    totals = level.totals
    return totals.get("good_requests_per_second", totals["requests_per_second"])
