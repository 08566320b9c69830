"""The answers of probes in each state of the server."""

import pytest

from tests.gateway.fixtures import ServedApp, serve

READY_PATHS = ("/", "/health", "/ping", "/health/ready")


async def statuses(app: ServedApp) -> tuple[set[int], int]:
    """Of readiness, on all its paths, and of liveness."""
    ready = {(await app.http.get(path)).status_code for path in READY_PATHS}
    return ready, (await app.http.get("/health/live")).status_code


@pytest.mark.parametrize(
    ("engine_ready", "draining", "alive", "expected"),
    [
        (True, False, True, ({200}, 200)),
        (False, False, True, ({503}, 200)),
        (True, True, True, ({503}, 200)),
        (False, False, False, ({503}, 503)),
    ],
    ids=["ready", "starting or restarting", "draining", "given up"],
)
async def test_readiness_and_liveness(
    engine_ready: bool, draining: bool, alive: bool, expected: tuple[set[int], int]
) -> None:
    async with serve() as app:
        app.engine.ready = engine_ready
        app.gateway.draining, app.gateway.alive = draining, alive
        assert await statuses(app) == expected


async def test_an_unready_server_answers_as_tgi_does_and_advises_when_to_return() -> None:
    async with serve() as app:
        app.engine.ready = False
        answer = await app.http.get("/health")
        assert answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}
        assert answer.headers["retry-after"] == str(app.engine.retry_after)


async def test_a_full_server_is_still_healthy() -> None:
    async with serve() as app:
        with app.gateway.admission.request(app.gateway.admission.max_requests):
            assert await statuses(app) == ({200}, 200)


async def test_a_draining_server_asks_load_balancers_to_leave() -> None:
    async with serve() as app:
        app.gateway.draining = True
        assert (await app.http.get("/health")).headers["connection"] == "close"
