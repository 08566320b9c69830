"""The supervisor's rules: its table of states, its budget of restarts, and what it does with real processes."""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import child_process
from gateway.config.options import Options
from gateway.processes import engine_process
from gateway.processes.engine_process import EnginePlace
from gateway.processes.supervisor import TRANSITIONS, RestartBudget, Signal, State, Supervisor
from jaxengine.options.command_line import parse
from jaxengine.rpc import transport
from tests.processes import PATIENCE, gone, until


@pytest.mark.parametrize("state", State)
def test_every_state_but_the_two_ends_can_be_left_and_the_ends_cannot(state: State) -> None:
    ways_out = [signal for origin, signal in TRANSITIONS if origin is state]
    assert bool(ways_out) == (state not in (State.STOPPED, State.FAILED))


@pytest.mark.parametrize("state", [State.STARTING, State.WARMING, State.READY, State.DRAINING])
def test_a_running_engine_may_exit_at_any_time(state: State) -> None:
    assert TRANSITIONS[state, Signal.EXITED] is (State.STOPPED if state is State.DRAINING else State.DEAD)


@pytest.mark.parametrize("state", [State.STARTING, State.WARMING, State.READY, State.DEAD])
def test_every_live_state_can_be_stopped(state: State) -> None:
    assert TRANSITIONS[state, Signal.STOP] in (State.DRAINING, State.STOPPED)


def test_every_state_is_reached_from_the_start() -> None:
    reached = {State.STARTING}
    for _ in State:
        reached |= {target for (origin, _), target in TRANSITIONS.items() if origin in reached}
    assert reached == set(State)


def test_the_first_restart_comes_at_once_and_so_does_one_after_a_long_life() -> None:
    budget = RestartBudget(100, 600)
    assert budget.next_delay(0, 0) == 0
    assert [budget.next_delay(now, 5) for now in range(50)] == [0] * 50


def test_pauses_after_short_lives_grow_up_to_two_seconds() -> None:
    budget = RestartBudget(100, 600)
    assert [budget.next_delay(now, 0.25) for now in range(6)] == [0, 0.25, 0.75, 1.75, 1.75, 1.75]
    budget.next_delay(10, 5)
    assert budget.next_delay(11, 0.25) == 0


def test_one_death_too_many_within_the_window_is_the_last() -> None:
    budget = RestartBudget(3, 100)
    assert [budget.next_delay(now, 5) for now in (0, 50, 99)] == [0, 0, 0]
    assert budget.next_delay(101, 5) == 0, "the first is out of the window"
    assert budget.next_delay(102, 5) is None


def test_slow_starts_that_all_fail_are_given_up_too() -> None:
    budget = RestartBudget(3, 100)
    delays = [budget.next_delay(now * 200.0, 150, was_ready=False) for now in range(4)]
    assert delays == [0, 0, 0, None]


def test_the_default_budget_survives_twelve_kills_in_a_few_minutes() -> None:
    options = Options()
    budget = RestartBudget(options.max_engine_restarts, options.engine_restart_window)
    assert None not in [budget.next_delay(now * 10.0, 5, was_ready=now % 2 == 0) for now in range(12)]


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., Supervisor]:
    """A supervisor of a process that runs a script."""

    def of(code: str, **options: Any) -> Supervisor:
        return Supervisor([sys.executable, "-c", code], os.environ, tmp_path, RestartBudget(5, 600), **options)

    return of


@pytest.mark.parametrize("code", [2, 65, 69, 73, 74, 77])
async def test_a_start_that_a_restart_cannot_mend_is_not_repeated(
    supervise: Callable[..., Supervisor], code: int
) -> None:
    states: list[State] = []
    supervisor = supervise(f"raise SystemExit({code})", on_state=states.append)
    assert await asyncio.wait_for(supervisor.run(), PATIENCE) == code
    assert states == [State.STARTING, State.DEAD, State.FAILED]


async def test_a_crash_loop_ends_with_70_after_five_restarts(
    supervise: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.processes.supervisor.BACKOFF_SECONDS", (0.01,))
    causes: list[str] = []
    supervisor = supervise("raise SystemExit(1)", on_restart=causes.append)
    assert await asyncio.wait_for(supervisor.run(), PATIENCE) == 70
    assert causes == ["died"] * 5
    assert supervisor.state is State.FAILED


async def test_a_final_code_after_having_been_ready_is_an_ordinary_death(
    supervise: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.processes.supervisor.BACKOFF_SECONDS", (0.01,))
    causes: list[str] = []
    end = tmp_path / "end"
    code = f"""import os, time
while not os.path.exists({str(end)!r}):
    time.sleep(0.01)
os.unlink({str(end)!r})  # the next life waits again
raise SystemExit(74)"""
    supervisor = supervise(code, on_restart=causes.append)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.pid is not None)
    supervisor.ready()
    end.touch()
    await until(lambda: causes == ["died"])
    await supervisor.stop(1)
    assert await running == 0


@pytest.mark.parametrize("reports", [False, True], ids=["silent", "reporting progress"])
async def test_an_engine_that_never_becomes_ready_is_killed_and_counts_as_hung(
    supervise: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    monkeypatch.setattr("gateway.processes.supervisor.STACK_DUMP_SECONDS", 0.1)
    causes: list[str] = []
    supervisor = supervise("import time; time.sleep(60)", startup_timeout=0.3, on_restart=causes.append)
    running = asyncio.create_task(supervisor.run())

    def hung() -> bool:
        if reports:
            supervisor.waits(False)  # as with every line of progress
        return causes == ["hung"]

    await until(hung)
    await supervisor.stop(0.1)
    assert await running == 0


async def test_waiting_for_other_machines_is_no_part_of_the_start(supervise: Callable[..., Supervisor]) -> None:
    causes: list[str] = []
    supervisor = supervise("import time; time.sleep(60)", startup_timeout=0.3, on_restart=causes.append)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.pid is not None)
    supervisor.waits(True)
    await asyncio.sleep(0.5)
    supervisor.waits(False)
    supervisor.ready()
    await asyncio.sleep(0.5)
    assert not causes
    await supervisor.stop(0.1)
    assert await running == 0


async def test_stopping_kills_an_engine_that_ignores_sigterm(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    stubborn = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(deaf)!r}).touch(); time.sleep(600)"
    )
    supervisor = supervise(stubborn)
    running = asyncio.create_task(supervisor.run())
    await until(deaf.exists)
    pid = supervisor.pid
    assert pid is not None
    await asyncio.wait_for(supervisor.stop(0.3), PATIENCE)
    assert gone(pid) and await running == 0 and supervisor.state is State.STOPPED


async def test_a_restart_that_is_called_off_still_kills_an_engine_that_ignores_sigterm(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    supervisor = supervise(
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(deaf)!r}).touch(); time.sleep(600)"
    )
    running = asyncio.create_task(supervisor.run())
    await until(deaf.exists)
    pid = supervisor.pid
    assert pid is not None
    restart = asyncio.create_task(supervisor.restart(0.3))
    await asyncio.sleep(0)
    restart.cancel()
    await until(lambda: supervisor.pid not in (pid, None))
    assert gone(pid) and supervisor.state is State.STARTING
    supervisor.kill()
    assert await running == 0


async def test_stopping_during_the_backoff_ends_at_once(
    supervise: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.processes.supervisor.BACKOFF_SECONDS", (600.0,))
    supervisor = supervise("raise SystemExit(1)")
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.state is State.DEAD)
    await supervisor.stop(1)
    assert await asyncio.wait_for(running, PATIENCE) == 0
    assert supervisor.state is State.STOPPED


async def test_an_engine_whose_directory_was_removed_starts_in_a_new_one(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    tmp_path.rmdir()
    supervisor = supervise("raise SystemExit(65)")
    assert await asyncio.wait_for(supervisor.run(), PATIENCE) == 65
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_the_engine_sees_an_allowed_environment_only() -> None:
    ours = {
        "PATH": "/bin", "API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "h", "XLA_FLAGS": "x", "FOO": "y",
        "OTEL_A": "o",
    }  # fmt: skip
    assert engine_process.environment(ours, "t") == {
        "PATH": "/bin", "HF_TOKEN": "h", "XLA_FLAGS": "x", "OTEL_A": "o", transport.TOKEN_VARIABLE: "t",
        **child_process.environment({}),
    }  # fmt: skip


def test_the_hubs_token_may_have_its_older_name() -> None:
    assert engine_process.environment({"HF_API_TOKEN": "old"}, "t")["HF_TOKEN"] == "old"
    assert engine_process.environment({"HF_API_TOKEN": "old", "HF_TOKEN": "new"}, "t")["HF_TOKEN"] == "new"


def test_the_engines_command_line_is_one_the_engine_takes() -> None:
    """Every option that is passed on is parsed back to the same value by the engine's own parser."""
    options = Options(model_id="a/b", revision="r", dtype="float32", num_shard=2, max_total_tokens=64,
                      max_batch_prefill_tokens=32, max_batch_total_tokens=640, max_batch_size=4,
                      huggingface_hub_cache=Path("/c"), cuda_memory_fraction=0.5, api_key="hush",
                      quantize="int8", kv_cache_dtype="fp8_e5m2")  # fmt: skip
    command = engine_process.command(options, EnginePlace(Path("/s/engine.sock")), 7)
    assert command[:5] == [sys.executable, "-P", "-m", "convert.cli", "serve"]
    parsed = dataclasses.asdict(parse(command[5:]))
    given = {
        "uds_path": Path("/s/engine.sock"), "parent_pid": 7, "model_id": "a/b", "revision": "r", "dtype": "float32",
        "tensor_parallel": 2, "max_total_tokens": 64, "max_batch_prefill_tokens": 32, "max_batch_total_tokens": 640,
        "max_batch_size": 4, "cache_dir": Path("/c"), "memory_fraction": 0.5, "attention": "auto", "drain_seconds": 5.0,
        "quantize": "int8", "kv_cache_dtype": "fp8_e5m2",
    }  # fmt: skip
    assert given.items() <= parsed.items()
    assert not any("hush" in part for part in command)


@pytest.mark.parametrize(
    ("sharded", "num_shard", "devices"), [(None, None, 1), (True, None, 0), (False, None, 1), (False, 2, 2)]
)
def test_a_model_is_split_over_all_devices_only_if_an_option_says_so(
    sharded: bool | None, num_shard: int | None, devices: int
) -> None:
    command = engine_process.command(Options(sharded=sharded, num_shard=num_shard), EnginePlace(Path("/s")), 1)
    assert f"--tensor-parallel={devices}" in command


@pytest.mark.parametrize(("v1", "tgi", "both"), [(20, 5, 20), (0, 5, 5), (3, 50, 50), (1000, 5, 1000)])
def test_an_engine_lists_as_many_alternatives_as_either_dialect_may_ask_for(v1: int, tgi: int, both: int) -> None:
    command = engine_process.command(Options(max_logprobs=v1, max_top_n_tokens=tgi), EnginePlace(Path("/s")), 1)
    assert f"--max-top-logprobs={both}" in command
