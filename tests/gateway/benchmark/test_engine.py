"""TGI's benchmark over the socket of an engine process whose steps take a known time, and without one."""

import asyncio
import contextlib
import io
import os
import signal
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TextIO

import pytest

from gateway.benchmark import engine_batch, engine_benchmark
from gateway.benchmark.command_line import parse
from gateway.benchmark.engine_batch import Batch, BatchFailed, Row
from gateway.benchmark.engine_socket import NoEngine, find
from gateway.benchmark.live import Lines
from gateway.benchmark.report import Report
from gateway.engine.interface import EngineUnavailable
from gateway.processes.runtime_directory import TOKEN, write_token
from jaxengine.options.option import UsageError
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from tests.engine_mock import FAIL
from tests.processes import ask, connected, running_engine, until

STEP = 0.02  # seconds
BUSY = 5  # times as long as a step should take, on a machine with other work


async def measured(
    path: Path, *options: str, environ: dict[str, str] | None = None, stream: TextIO | None = None
) -> Report:
    shown = Lines(1, stream or io.StringIO())
    return await engine_benchmark.measure(parse([f"-m={path}", *options], {}), environ or {}, shown)


async def test_steps_take_the_time_that_the_engine_takes(tmp_path: Path) -> None:
    with running_engine(tmp_path, f"--step-seconds={STEP}") as engine:
        async with connected(engine):
            pass
        write_token(engine.path.parent, engine.token)
        report = await measured(engine.path.parent, "-b", "1", "4", "-r=3", "-s=6", "-d=11")
    assert not report.failure and not report.warnings
    one, four = report.levels
    assert [level.load.value for level in (one, four)] == [1, 4] and len(four.runs) == 3
    for level in (one, four):
        token = level.spread["decode_token_ms"]
        assert 1e3 * STEP <= token.lowest <= token.p50 < BUSY * 1e3 * STEP
        assert level.spread["decode_total_ms"].mean == pytest.approx(10 * token.mean)
        assert 1e3 * STEP <= level.spread["prefill_ms"].p50 < 2 * BUSY * 1e3 * STEP
        tokens = level.load.value / STEP
        assert tokens / BUSY < level.spread["decode_tokens_per_second"].p50 <= tokens


async def test_no_prompt_is_in_the_engines_prefix_cache(tmp_path: Path) -> None:
    with running_engine(tmp_path, "--prefix-pages=1000", "--page-size=4") as engine:
        async with connected(engine):
            pass
        write_token(engine.path.parent, engine.token)
        reports = [await measured(engine.path, "-b=4", "-r=2", "-s=32", "--seed=1") for _ in range(2)]
    for report in reports:
        assert [level.totals["cached_tokens"] for level in report.levels] == [0] and not report.warnings


async def test_an_engine_that_dies_ends_the_report_with_what_was_measured(tmp_path: Path) -> None:
    with running_engine(tmp_path, f"--step-seconds={STEP}") as engine:
        async with connected(engine):
            pass
        environ, shown = {transport.TOKEN_VARIABLE: engine.token}, io.StringIO()
        options = ("-b", "1", "2", "-r=1", "-w=0", "-d=60")
        running = asyncio.create_task(measured(engine.path, *options, environ=environ, stream=shown))
        await until(lambda: "batch size 1, run 1 of 1" in shown.getvalue())
        os.kill(engine.process.pid, signal.SIGKILL)
        report = await running
    assert report.failure == "the engine stopped" and [level.load.value for level in report.levels] == [1]


async def test_requests_that_the_engine_refuses_or_fails_are_told(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine) as client:
            with pytest.raises(BatchFailed, match="told to fail"):
                await engine_batch.run(client, [ask([FAIL, 1], 4, ignore_eos=True), ask([1], 4)])
        write_token(engine.path.parent, engine.token)
        with pytest.raises(UsageError, match="--sequence-length 2000 and --decode-length 100 are 2100 tokens together"):
            await measured(engine.path, "-s=2000", "-d=100")
        with pytest.raises(UsageError, match="--top-n-tokens 999 must be at most"):
            await measured(engine.path, "--top-n-tokens=999")


async def test_batches_that_had_ended_are_kept_when_one_fails() -> None:
    class Failing:
        batches = 0

        async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
            self.batches += 1
            if self.batches > 3:
                raise EngineUnavailable("the engine stopped", 1)
            yield pb.RequestEvent(tokens=[pb.Token(id=1)], finish=pb.LENGTH)

    report, description = Report("engine", {}, {}), pb.Description(vocab_size=100)
    options = parse(["-b=1", "-r=5", "-w=1"], {})
    with pytest.raises(BatchFailed, match="the engine stopped"):
        await engine_benchmark._level(Failing(), options, description, 1, Lines(1, io.StringIO()), report)
    [level] = report.levels
    assert len(level.runs) == 2


async def test_compiles_of_a_report_are_those_of_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiling:
        stats = pb.Stats(compiles_after_warmup=5)

        async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
            self.stats.compiles_after_warmup += 1
            yield pb.RequestEvent(tokens=[pb.Token(id=1)], finish=pb.LENGTH)

    @contextlib.asynccontextmanager
    async def connected_to(*_: object) -> AsyncGenerator[tuple[Compiling, pb.Description], None]:
        yield Compiling(), pb.Description(vocab_size=100, max_total_tokens=100)

    monkeypatch.setattr(engine_benchmark, "find", lambda *_: (tmp_path, ""))
    monkeypatch.setattr(engine_benchmark, "_connected", connected_to)
    report = await measured(tmp_path, "-b=1", "-r=2", "-w=1")
    assert report.facts["compiles during the measurement"] == 3


async def test_a_time_out_within_the_measurement_is_not_one_of_connecting(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine):
            pass
        with pytest.raises(TimeoutError):
            async with engine_benchmark._connected(engine.path, engine.token):
                raise TimeoutError


async def test_a_wrong_token_and_a_dead_socket_are_told(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine):
            pass
        write_token(engine.path.parent, "wrong")
        with pytest.raises(NoEngine, match="refuses the token"):
            await measured(engine.path)
    with pytest.raises(NoEngine, match="does not answer"):
        await measured(engine.path)


def test_a_socket_is_found_by_its_directory_with_its_token(tmp_path: Path) -> None:
    bind(tmp_path / "engine-0.sock")
    write_token(tmp_path, "secret")
    assert (tmp_path / TOKEN).stat().st_mode & 0o777 == 0o600
    assert find(tmp_path, {}) == find(tmp_path / "engine-0.sock", {}) == (tmp_path / "engine-0.sock", "secret")
    (tmp_path / TOKEN).unlink()
    assert find(tmp_path, {transport.TOKEN_VARIABLE: "given"})[1] == "given"
    with pytest.raises(NoEngine, match="no token lies beside"):
        find(tmp_path, {})


def test_what_to_pass_is_said_where_there_is_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.benchmark.engine_socket.PREFIX", tmp_path / "s")
    with pytest.raises(
        NoEngine, match=r"--master-shard-uds-path .*none does not exist: pass .*there is none at .*s-\*"
    ):
        find(tmp_path / "none", {})
    (tmp_path / "s-3000").mkdir()
    bind(tmp_path / "s-3000" / "engine.sock")
    with pytest.raises(NoEngine, match=r"holds no engine's socket: .*there are .*s-3000; or measure over HTTP"):
        find(tmp_path, {})
    (tmp_path / "file").touch()
    with pytest.raises(NoEngine, match=r"file is no socket"):
        find(tmp_path / "file", {})


def bind(path: Path) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).bind(str(path))


def test_prefill_ends_with_the_last_first_token() -> None:
    early, late = Row([1.0, 2.0, 3.0], 0), Row([2.0, 3.0, 4.0], 5)
    batch = Batch.of(0.5, [early, late])
    assert (batch.prefill, batch.decode, batch.steps) == (1.5, 2.0, 2)
    assert batch.decoded == 3, "what the early row was given before is no decode of the batch"
    assert batch.measures == {
        "prefill_ms": 1500,
        "prefill_tokens_per_second": 2 / 1.5,
        "decode_token_ms": 1000,
        "decode_total_ms": 2000,
        "decode_tokens_per_second": 1.5,
    }
    assert Batch.of(0.0, [Row([1.0], 0)]).measures.keys() == {"prefill_ms", "prefill_tokens_per_second"}


async def test_an_answer_without_a_token_is_no_measurement() -> None:
    class Silent:
        async def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
            yield pb.RequestEvent(finish=pb.LENGTH)

    with pytest.raises(BatchFailed, match="without a token"):
        await engine_batch.run(Silent(), [ask([1], 4)])
