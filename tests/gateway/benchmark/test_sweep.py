"""The knee of servers whose goodput is known."""

import pytest

from gateway.benchmark.report import Level, Load, Report
from gateway.benchmark.sweep import knee, sweep


class Server:
    """Serves `capacity` users within the SLO; of more, ever fewer are served well.

    plateau: most requests a second.
    """

    def __init__(self, capacity: int, plateau: float = 1e9) -> None:
        self._capacity, self._plateau = capacity, plateau
        self.tried: list[int] = []

    async def measure(self, users: int) -> Level:
        self.tried.append(users)
        share = 1.0 if users <= self._capacity else max(0.0, 1.9 - users / (self._capacity or 0.1))
        rate = min(float(users), self._plateau)
        totals = {"complete": float(users), "requests_per_second": rate, "good_share": share}
        return Level(Load("concurrency", users), totals={**totals, "good_requests_per_second": rate * share})


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 48, 50, 64, 100, 1000])
async def test_the_knee_is_found_to_one_part_in_eight(capacity: int) -> None:
    server = Server(capacity)
    levels = await sweep(server.measure, needed=0.95)
    found = knee(levels, 0.95)
    assert found is not None and capacity - max(1, capacity / 8) <= found <= capacity * 1.05
    assert [level.load.value for level in levels] == sorted(set(server.tried))
    assert len(server.tried) < 20


async def test_a_sweep_doubles_until_goodput_falls() -> None:
    server = Server(10)
    await sweep(server.measure, needed=None)
    assert server.tried == [1, 2, 4, 8, 16, 32][: len(server.tried)] and server.tried[-1] in (16, 32)


async def test_without_growth_a_sweep_ends() -> None:
    server = Server(10**6, plateau=20)
    await sweep(server.measure, needed=None)
    assert server.tried == [1, 2, 4, 8, 16, 32, 64]


async def test_a_sweep_ends_where_nothing_is_good() -> None:
    server = Server(0)
    levels = await sweep(server.measure, needed=0.95)
    assert server.tried == [1] and knee(levels, 0.95) is None


async def test_a_server_that_serves_nobody_has_no_knee() -> None:
    levels = await sweep(Server(1).measure, needed=0.95)
    assert knee(levels, 0.95) == 1
    none = [
        Level(Load("concurrency", 1), totals={"good_share": 0.5}),
        Level(Load("concurrency", 2), totals={"good_share": 1}),
    ]
    assert knee(none, 0.95) is None, "a load is not served if a lower one is not"


def test_the_knee_is_told_in_words() -> None:
    level = Level(Load("concurrency", 48))
    report = Report("server", {}, {}, [level], slo="ttft=500ms", slo_share=0.95, knee=48.0)
    assert report.verdict == "Serves 48 users within the SLO (ttft=500ms, 95% of answers)"
    report.knee = 1.0
    assert report.verdict.startswith("Serves 1 user within")
    report.knee = None
    assert report.verdict.startswith("Serves no load of those tried")
    report.levels, report.knee = [Level(Load("rate", 2.5))], 2.5
    assert report.verdict.startswith("Serves 2.5 requests a second")
