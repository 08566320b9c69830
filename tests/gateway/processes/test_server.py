"""The exit code of a run when one of its parts ends."""

import asyncio
import os
from typing import Any

import pytest

from gateway.processes.server import exit_code
from gateway.text.loader import UnusableModel


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
