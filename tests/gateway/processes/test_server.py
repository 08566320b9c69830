"""The exit code of a run when one of its parts ends."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from gateway.config.options import Options
from gateway.processes.engine_process import command
from gateway.processes.server import Server, exit_code, serve
from gateway.text.loader import UnusableModel
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.progress import OPENING, WAITING
from jaxengine.telemetry.tracing import Tracing


async def failed_with(error: Exception) -> "asyncio.Task[Any]":
    async def part() -> None:
        raise error

    task = asyncio.create_task(part())
    await asyncio.wait((task,))
    return task


async def test_unusable_files_are_named_and_are_bad_data(capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(await failed_with(UnusableModel("tokenizer.json: broken"))) == os.EX_DATAERR
    assert capfd.readouterr().err == "error: the model's files cannot be used: tokenizer.json: broken\n"


@pytest.mark.parametrize("error", [OSError("no more processes"), ValueError("a bug")])
async def test_any_other_failure_is_not_blamed_on_the_models_files(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert exit_code(await failed_with(error)) == os.EX_SOFTWARE
    assert "internal error" in caplog.text and "files" not in caplog.text


async def test_the_engines_own_exit_code_is_the_servers() -> None:
    async def engine() -> int:
        return 69

    task = asyncio.create_task(engine())
    await task
    assert exit_code(task) == 69


async def test_a_full_disk_under_the_runtime_directory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gateway.processes.server.write_token", full)
    code = await serve(Options(), {}, [], None, None, tmp_path, command, 0.0, Tracing())
    assert code == os.EX_CANTCREAT
    assert capfd.readouterr().err == f"error: cannot write into {tmp_path}: No space left on device\n"


@pytest.mark.parametrize(
    "line, waits", [(f"{OPENING} org/m", True), (f"{WAITING} machines", True), ("loading 1/2", False)]
)
def test_what_may_take_however_long_takes_nothing_of_the_startup_timeout(line: str, waits: bool) -> None:
    server, engine = Server.__new__(Server), MagicMock()
    server._engines, server._start_progress = [engine], [MagicMock()]  # type: ignore[assignment]
    server.engine_progress(0, pb.Description(state=pb.STARTING, progress=line))
    engine.waits.assert_called_once_with(waits)
