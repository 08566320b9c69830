"""More idle connections than the server keeps: they are closed for each other, and requests are still answered."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.gateway.toys import write_model
from tests.processes import PATIENCE, running_launcher

MANY = 1200  # uvicorn's own limit, which counts sockets, was 1,024
HEAD = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
PARTS = {"idle": b"", "half a head": HEAD[:17], "half a body": HEAD + b"half"}


@pytest.mark.parametrize("part", PARTS)
async def test_over_a_thousand_connections_that_wait_for_their_clients_take_nothing_down(
    tmp_path: Path, part: str
) -> None:
    with running_launcher(write_model(tmp_path)) as server:
        await asyncio.to_thread(server.wait_for, 200)
        port = int(server.url.rpartition(":")[2])
        idle = []
        for _ in range(MANY):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PARTS[part])
            idle.append(writer)
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
            body = {"inputs": "hello", "parameters": {"max_new_tokens": 5}}
            assert (await http.post("/generate", json=body)).status_code == 200
            assert (await http.get("/health/live")).status_code == (await http.get("/health")).status_code == 200
        for writer in idle:
            writer.close()
