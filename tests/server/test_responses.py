"""Stored responses where several processes speak HTTP: each knows them all, and nothing of them is left behind."""

from pathlib import Path

import httpx
import pytest

from gateway.request.response_store import FILE
from tests.processes import PATIENCE
from tests.servers import serving

pytestmark = pytest.mark.slow

CONNECTIONS = 8  # each of which the kernel gives to one of the processes


def test_a_response_is_known_to_every_process_until_the_server_ends(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--api-workers=3", "--max-batch-size=8", "--max-batch-prefill-tokens=64")
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        at = server.url + "/v1/responses"
        body = {"input": "CANARY", "max_output_tokens": 2}
        made = [httpx.post(at, json=body, timeout=PATIENCE).json()["id"] for _ in range(CONNECTIONS)]
        shown = [httpx.get(f"{at}/{id}", timeout=PATIENCE) for id in made for _ in range(CONNECTIONS)]
        assert {each.status_code for each in shown} == {200}
        longer = [httpx.post(at, json={**body, "previous_response_id": made[0]}, timeout=PATIENCE) for _ in made]
        assert len({each.json()["usage"]["input_tokens"] for each in longer}) == 1
        [file] = tmp_path.rglob(FILE)
        assert file.parent.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.rglob(f"{FILE}*"))
    assert "CANARY" not in server.log.read_text()
