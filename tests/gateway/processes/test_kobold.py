"""A generation that was begun by one HTTP process is seen and ended by any."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.processes.test_launcher import STEP
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, running_launcher

pytestmark = pytest.mark.slow

SEVERAL = 24  # connections: the chance that all reach one of two processes is 1 in 8 million
NAMED = {"genkey": "KCPP1"}


def post(url: str, **body: Any) -> Any:
    """Over a connection of its own, which any of the server's processes may get."""
    return httpx.post(url, json=body, timeout=PATIENCE).json()


async def test_check_and_abort_reach_every_process(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--api-workers=2", mock=(STEP,)) as server:
        server.wait_for(200)
        server.hold.touch()
        body = {"prompt": "hello", "max_length": 100, **NAMED}
        begun = asyncio.create_task(asyncio.to_thread(post, f"{server.url}/api/v1/generate", **body))
        check = f"{server.url}/api/extra/generate/check"
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not all([(await asyncio.to_thread(post, check, **NAMED))["results"][0]["text"] for _ in range(SEVERAL)]):
            assert asyncio.get_running_loop().time() < deadline
        assert not begun.done()
        for _ in range(SEVERAL):
            other = await asyncio.to_thread(post, f"{server.url}/api/extra/abort", genkey="another")
            assert other == {"success": "false", "done": "false"}
        aborted = await asyncio.to_thread(post, f"{server.url}/api/extra/abort", **NAMED)
        assert aborted == {"success": "true", "done": "true"}
        [result] = (await begun)["results"]
        assert (result["finish_reason"], result["completion_tokens"]) == ("stop", 1)
