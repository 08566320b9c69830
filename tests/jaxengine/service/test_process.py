"""The engine as a process: how it starts, fails, drains and dies. Exit codes are a contract with the supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.engine.interface import EngineUnavailable
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.service.process import STOP_SECONDS
from tests.engine_mock import RAISE, continuation
from tests.processes import PATIENCE, ROOT, ask, collect, connected, gone, is_busy, running_engine, until


@pytest.mark.parametrize("code", [2, 65, 69, 74, 77])
def test_a_model_that_cannot_load_is_one_line_and_its_exit_code(tmp_path: Path, code: int) -> None:
    with running_engine(tmp_path, f"--fail-with={code}") as engine:
        _, stderr = engine.process.communicate(timeout=PATIENCE)
    assert engine.process.returncode == code
    assert stderr == "error: told to fail\n"


async def test_the_socket_is_open_before_the_model_is_loaded(tmp_path: Path) -> None:
    with running_engine(tmp_path, "--load-seconds=600") as engine:
        await until(engine.path.exists)


async def test_sigterm_while_loading_ends_at_once(tmp_path: Path) -> None:
    with running_engine(tmp_path, "--load-seconds=600") as engine:
        await until(engine.path.exists)
        engine.process.terminate()
        assert engine.process.wait(PATIENCE) == 0


async def test_sigterm_lets_running_requests_finish_and_cleans_up(tmp_path: Path) -> None:
    with running_engine(tmp_path, "--step-seconds=0.005", f"--drain-seconds={PATIENCE}") as engine:
        async with connected(engine) as client:
            stream = client.generate(ask([10], 100))
            first = await anext(stream)
            engine.process.terminate()
            ids = [token.id for token in first.tokens]
            async for event in stream:
                ids += [token.id for token in event.tokens]
            assert ids == continuation([10], 100)
            assert event.finish == pb.LENGTH
        assert engine.process.wait(PATIENCE) == 0
        assert not engine.path.parent.exists()


async def test_sigterm_while_an_adapter_is_loaded_ends_at_once(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with running_engine(tmp_path, "--max-loras=4", f"--hold={hold}") as engine:
        async with connected(engine) as client:
            hold.touch()
            loading = asyncio.create_task(client.adapters.load("one", "org/one", in_place=False))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            engine.process.terminate()
            with pytest.raises(EngineUnavailable):
                await asyncio.wait_for(loading, PATIENCE)
            assert engine.process.wait(PATIENCE) == 0
            assert time.monotonic() - began < STOP_SECONDS or is_busy()


async def test_a_step_beyond_repair_ends_the_process_with_70(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine) as client:
            await collect(client, ask([RAISE], 5))
            assert engine.process.wait(PATIENCE) == 70


async def test_sigabrt_writes_every_threads_stack(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        async with connected(engine):
            pass
        engine.process.send_signal(signal.SIGABRT)
        _, stderr = engine.process.communicate(timeout=PATIENCE)
    assert "step_loop.py" in stderr and "Current thread" in stderr


def test_the_engine_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'tests.engine_mock', f'--parent-pid={os.getpid()}',"
        f" '--uds-path={tmp_path}/private/engine.sock'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), transport.TOKEN_VARIABLE: "t"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while not (tmp_path / "private" / "engine.sock").exists():
            time.sleep(0.01)
        parent.kill()
        assert gone(child)


def test_a_second_engine_on_the_same_socket_is_refused(tmp_path: Path) -> None:
    with running_engine(tmp_path) as first:
        while not first.path.exists():
            time.sleep(0.01)
        with running_engine(tmp_path) as second:
            _, stderr = second.process.communicate(timeout=PATIENCE)
        assert second.process.returncode == 2
        assert "another server listens" in stderr
        assert first.process.poll() is None and first.path.exists()


def test_the_real_servers_usage_errors_are_one_line_without_importing_jax(tmp_path: Path) -> None:
    code = "import sys; from jaxengine.server import main; code = main(['--dtype=int3', '--uds-path=x']);"
    code += "sys.exit(99 if 'jax' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "int3" in done.stderr
