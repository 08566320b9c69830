"""The server in replicas of a real Ray Serve, through its proxy: in front of the mock engine, and of a model."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.environments import run_script
from tests.engine_mock import continuation
from tests.gateway.toys import byte_level, write_model
from tests.processes import PATIENCE, command_line, gauges, gone
from tests.ray_cluster import DEPLOYMENT, Cluster, ray_cluster
from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import Outcome, stream
from tests.servers import descendants
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

MOCK = "tests.mock_ray_serve:build"
PERMITS = 8  # more than the 5 requests that Serve lets a replica have unless it is told
AT_ONCE = {"upscale_delay_s": 0, "metrics_interval_s": 0.1, "look_back_period_s": 1.0}  # of autoscaling
NUMBERS = itertools.count()
PROMPT = "hello"
EXPECTED = continuation(byte_level().encode(PROMPT).ids, 8)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Arguments of the application, from the mock engine's and from options of the launcher."""
    directory = write_model(tmp_path_factory.mktemp("mock"))

    def arguments(*its: str, **options: Any) -> dict[str, Any]:
        return {"mock": [f"--model-dir={directory}", *its], "shard-uds-path": f"{directory}/s", **options}

    return arguments


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file. While it is there, the engine of `shared` stops after the first token of each request."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def shared(cluster: Cluster, mock: Callable[..., dict[str, Any]], hold: Path) -> Iterator[str]:
    """The URL of an application that the tests leave as they found it."""
    url = cluster.deploy("shared", MOCK, mock(f"--hold={hold}", max_concurrent_requests=PERMITS))
    cluster.wait("shared")
    yield url
    cluster.delete("shared")


@pytest.fixture
def own(cluster: Cluster) -> Iterator[str]:
    """The name of an application of the test's own. It ends while the next test begins."""
    yield (name := f"own-{next(NUMBERS)}")
    cluster.delete(name)


@contextlib.contextmanager
def held(hold: Path) -> Iterator[None]:
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


async def begin(url: str, tokens: int) -> "asyncio.Task[Outcome]":
    """Start a stream, and wait for its first token."""
    begun = asyncio.Event()
    task = asyncio.create_task(stream(url, PROMPT, tokens, begun))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    return task


async def test_a_token_of_a_stream_arrives_before_the_next_is_made(shared: str, hold: Path) -> None:
    with held(hold):
        running = await begin(shared, len(EXPECTED))
        assert not running.done()
    assert await running == Outcome(tuple(EXPECTED), None)


def test_openais_sdk_chats_and_streams(shared: str) -> None:
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40}
    answer = httpx.post(shared + "/v1/chat/completions", json=chat, timeout=PATIENCE).json()
    text = answer["choices"][0]["message"]["content"]
    assert text and run_script("modern", "openai_async", url=shared, user=PROMPT) == {"chats": [text] * 4}


def test_each_dialect_words_what_is_not_there_below_the_prefix(shared: str) -> None:
    assert "message" in httpx.get(shared + "/v1/nothing", timeout=PATIENCE).json()["error"]
    assert isinstance(httpx.get(shared + "/nothing", timeout=PATIENCE).json()["error"], str)
    assert httpx.get(shared, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_a_client_that_leaves_gives_its_pages_back(shared: str, path: str) -> None:
    """On busy cores Serve loses one cancellation in a hundred. Such a request is answered to its end, for nobody."""
    for _ in range(3):
        if await leave(shared, path):
            return
    pytest.fail("no request is cancelled")


async def leave(url: str, path: str) -> bool:
    """Ask, leave, and wait until the pages are free: whether that was because the request was cancelled."""
    dropped, used = 'tgi_request_failure{err="dropped"}', 'textgen_kv_pages{engine="0",state="used"}'
    before = gauges(url)
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1000}}
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        leaving = asyncio.create_task(http.post(url + path, json=body))
        await asyncio.to_thread(until, lambda: gauges(url)[used] > 0, "it never ran")
        leaving.cancel()
        await asyncio.wait((leaving,))
    await asyncio.to_thread(until, lambda: gauges(url)[used] == 0, "its pages are not free")
    return gauges(url)[dropped] > before[dropped]


async def test_a_request_too_many_is_refused_by_us_with_advice(shared: str, hold: Path) -> None:
    with held(hold):
        running = [await begin(shared, 2) for _ in range(PERMITS)]
        body = {"inputs": PROMPT}
        refused = await asyncio.to_thread(httpx.post, shared + "/generate", json=body, timeout=PATIENCE)
        assert refused.status_code == 429 and refused.json()["error_type"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert [(await each).error for each in running] == [None] * PERMITS


def test_a_wrong_option_is_refused_in_the_launchers_words_without_a_replica(
    cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]]
) -> None:
    cluster.deploy(own, MOCK, mock(max_best_of=0))
    until(lambda: (found := cluster.status(own)) and found.status == "DEPLOY_FAILED", "it is not refused")
    found = cluster.status(own)
    assert found is not None and not found.deployments
    assert found.message.endswith("\n--max-best-of '0' must be between 1 and 128")


def test_why_a_start_fails_is_in_serves_status(cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]]) -> None:
    cluster.deploy(own, MOCK, mock(f"--fail-with={os.EX_DATAERR}"), max_constructor_retry_count=1)
    until(lambda: (found := cluster.status(own)) and found.status == "DEPLOY_FAILED", "it does not fail")
    found = cluster.status(own)
    assert found is not None
    assert "the server has ended: error: told to fail" in found.deployments[DEPLOYMENT].message


async def test_a_request_waits_in_serve_until_the_model_is_loaded(
    cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (hold := tmp_path / "hold").touch()
    url = cluster.deploy(own, MOCK, mock(f"--hold={hold}"))
    loading = lambda: any(engine(each) for each in cluster.replicas(own))  # noqa: E731
    await asyncio.to_thread(until, loading, "no engine is started")
    asked = asyncio.create_task(stream(url, PROMPT, len(EXPECTED)))
    await asyncio.sleep(1.0)  # for Serve to send it to a replica that it took for ready
    assert cluster.running(own) == 0 and not asked.done()
    hold.unlink()
    assert await asked == Outcome(tuple(EXPECTED), None)


def test_a_replica_whose_engine_is_given_up_is_replaced(
    cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]]
) -> None:
    url = cluster.deploy(own, MOCK, mock(max_engine_restarts=0), health_check_period_s=0.2)
    cluster.wait(own)
    (first,) = cluster.replicas(own)
    os.kill(engine(first)[0], signal.SIGKILL)
    assert gone(first), "the replica stays"
    until(lambda: cluster.running(own) == 1, "there is no other replica")
    assert cluster.replicas(own) != {first}
    assert httpx.post(url + "/generate", json={"inputs": PROMPT}, timeout=PATIENCE).status_code == 200


def test_an_engine_that_dies_is_started_again_in_the_same_replica(cluster: Cluster, shared: str) -> None:
    before = cluster.replicas("shared")
    (replica,) = before
    restarts = 'textgen_engine_restarts_total{cause="died",engine="0"}'
    os.kill(engine(replica)[0], signal.SIGKILL)
    until(lambda: gauges(shared)[restarts] == 1 and httpx.get(shared + "/health").status_code == 200, "it stays dead")
    assert cluster.replicas("shared") == before


def test_a_replica_that_is_killed_leaves_no_process_and_is_replaced(cluster: Cluster, shared: str) -> None:
    (replica,) = cluster.replicas("shared")
    family = descendants(replica)
    assert engine(replica)
    os.kill(replica, signal.SIGKILL)
    assert all(gone(pid) for pid in family)
    until(lambda: cluster.replicas("shared") - {replica} and cluster.running("shared"), "there is no other replica")


async def test_running_requests_end_when_the_application_is_replaced(
    cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    url = cluster.deploy(own, MOCK, mock(f"--hold={hold}"))
    await asyncio.to_thread(cluster.wait, own)
    (first,) = cluster.replicas(own)
    family = [first, *descendants(first)]
    with held(hold):
        running = await begin(url, len(EXPECTED))
        cluster.deploy(own, MOCK, mock(max_best_of=7))
        await asyncio.to_thread(until, lambda: cluster.running(own) == 0, "the replica goes on")
    assert await running == Outcome(tuple(EXPECTED), None)
    await asyncio.to_thread(cluster.wait, own)
    assert httpx.get(url + "/info", timeout=PATIENCE).json()["max_best_of"] == 7
    assert all(gone(pid) for pid in family)


@pytest.mark.filterwarnings(
    "ignore:The `metrics_interval_s` field"
)  # the variables in its place are of all applications
async def test_a_second_replica_starts_while_requests_are_many_and_each_has_its_own_metrics(
    cluster: Cluster, own: str, mock: Callable[..., dict[str, Any]], tmp_path: Path, free_port: int
) -> None:
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, **AT_ONCE}
    hold = tmp_path / "hold"
    arguments = mock(f"--hold={hold}", admin_port=free_port)
    url = cluster.deploy(own, MOCK, arguments, autoscaling_config=scaling)
    await asyncio.to_thread(cluster.wait, own)
    with held(hold):
        running = [await begin(url, 2) for _ in range(4)]
        await asyncio.to_thread(until, lambda: len(cluster.replicas(own)) == 2, "there is no second replica")
    assert [(await each).error for each in running] == [None] * 4
    await asyncio.to_thread(until, lambda: cluster.running(own) == 2, "the second replica is not ready")
    sent, counts = len(running), [0.0, 0.0]
    deadline = time.monotonic() + PATIENCE
    while 0 in counts and time.monotonic() < deadline:
        sent += len(await asyncio.gather(*(stream(url, PROMPT, 2) for _ in range(8))))
        counts = [gauges(f"http://127.0.0.1:{free_port + each}")["tgi_request_count"] for each in range(2)]
    assert min(counts) > 0 and sum(counts) == sent


async def test_a_model_answers_as_the_reference_computes(
    cluster: Cluster, own: str, tiny_model: Path, tmp_path: Path
) -> None:
    options = dict(each.removeprefix("--").split("=") for each in TINY_OPTIONS)
    arguments = {"model-id": str(tiny_model), "shard-uds-path": f"{tmp_path}/s", **options}
    url = cluster.deploy(own, "gateway.ray_serve:build", arguments)
    await asyncio.to_thread(cluster.wait, own)
    golden = reference_greedy(tiny_model, tokenizer().encode("def add("), 20)
    assert await stream(url, "def add(", 20) == Outcome(tuple(golden), None)


def engine(replica: int) -> list[int]:
    """The engine processes of a replica."""
    return [pid for pid in descendants(replica) if "\0tests.engine_mock\0" in command_line(pid)]


@pytest.fixture
def free_port() -> int:
    """A port that is free, and so is the next one, most likely."""
    from gateway.http.listener import bind

    with bind("127.0.0.1", 0)[0] as probe:
        return int(probe.getsockname()[1])
