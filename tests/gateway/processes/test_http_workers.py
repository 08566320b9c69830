"""Further HTTP processes that cannot be had: the server ends, and says why."""

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.config.options import Options
from gateway.processes.http_workers import Workers
from gateway.processes.worker_spec import WorkerSpec
from gateway.request.shared_counters import SharedCounters
from tests.processes import PATIENCE


async def test_why_a_process_cannot_be_started_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with socket.socket() as listener:
        spec = WorkerSpec(1, listener, (), "token", SharedCounters(rows=2), tmp_path)
        with pytest.raises(BlockingIOError):
            await asyncio.wait_for(Workers([spec], Options()).run(), PATIENCE)
