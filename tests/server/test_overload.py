"""A full server refuses at once and says when to come back."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import serving

LONG = {"prompt": "quick brown", "max_tokens": 2000, "ignore_eos": True, "stream": True}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}}),
    ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 1}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stream": True}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ("/api/v1/generate", {"prompt": "a", "max_length": 1}),
    ("/api/extra/generate/stream", {"prompt": "a", "max_length": 1}),
    ("/v2/models/ensemble/generate", {"text_input": "a", "max_tokens": 1}),
    ("/v2/models/ensemble_logits/generate", {"input_ids": [1], "positions": "last"}),
]


async def test_beyond_the_concurrency_limit_every_route_answers_429_with_retry_after(
    tiny_model: Path, tmp_path: Path
) -> None:
    limits = ("--max-concurrent-requests=2", "--engine-hang-timeout=600")
    with serving(tmp_path, f"--model-id={tiny_model}", *limits, *TINY_OPTIONS) as server:
        await asyncio.to_thread(server.wait_ready)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
            async with streaming(http), streaming(http):
                os.kill(server.engine_pid(), signal.SIGSTOP)  # so that both still run when the last is refused
                for path, body in OTHERS:
                    refusal = await http.post(path, json=body)
                    assert refusal.status_code == (503 if path.startswith(("/v2", "/api/")) else 429), path
                    assert 1 <= int(refusal.headers["retry-after"]) <= 60
                    assert_worded(path, refusal.json())
                os.kill(server.engine_pid(), signal.SIGCONT)
            for path, body in OTHERS:
                assert (await accepted(http, path, body)).status_code == 200


@asynccontextmanager
async def streaming(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """A long stream that has begun; its client leaves when the `with` block ends."""
    async with http.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.aiter_lines()  # kept in a variable: a collected iterator closes the connection
        assert answer.status_code == 200 and await anext(lines)
        yield


def assert_worded(path: str, refusal: Any) -> None:
    if path.startswith("/api/"):
        assert refusal == {"detail": {"msg": "Model is overloaded", "type": "service_unavailable"}}
    elif path.startswith("/v1"):
        error = refusal["error"]
        assert error["type"] == "rate_limit_error" and error["message"] == "Model is overloaded"
    else:
        assert refusal["error"] == "Model is overloaded"


async def accepted(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    """The first 200, once the server has noticed the clients that left. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        answer = await http.post(path, json=body)
        if answer.status_code not in (429, 503):
            return answer
        await asyncio.sleep(0.05)
    pytest.fail("the permits of clients that left are not free")
