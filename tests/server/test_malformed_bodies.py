"""Two thousand broken bodies against a real server and engine: no 5xx, and the same answers afterwards."""

import random
from pathlib import Path

import httpx
import pytest

from tests.gateway.http.test_fuzz import ROUTES, SAME_BODY, body_of, check, mutated
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.server.streams import stream
from tests.servers import serving
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

BODIES = 2000
PATHS = [*ROUTES, *SAME_BODY]
JSON = {"content-type": "application/json"}


async def test_no_body_breaks_the_real_server(tiny_model: Path, tmp_path: Path) -> None:
    golden = reference_greedy(tiny_model, tokenizer().encode("The river"), 32)
    draw = random.Random(31)
    statuses: dict[int, int] = {}
    # Short, because a mutant that asks for no limit runs up to it.
    with serving(tmp_path, f"--model-id={tiny_model}", "--max-total-tokens=64", *TINY_OPTIONS) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            for number in range(BODIES):
                path = PATHS[number % len(PATHS)]
                raw = mutated(body_of(path), draw)
                answer = http.post(path, content=raw, headers=JSON)
                check(path, answer, raw)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        outcome = await stream(server.url, "The river", 32)
        assert outcome.error is None and list(outcome.ids) == golden
        gauges = server.gauges()
        assert gauges["tgi_batch_current_size"] == gauges["tgi_queue_size"] == 0
        assert gauges['textgen_kv_pages{engine="0",state="used"}'] == 0
        restarts = [f'textgen_engine_restarts_total{{cause="{cause}",engine="0"}}' for cause in ("died", "hung")]
        assert [gauges[name] for name in restarts] == [0, 0]
        assert (
            gauges['textgen_step_failures_total{engine="0"}']
            == gauges['textgen_compiles_after_warmup_total{engine="0"}']
            == 0
        )
    assert "Traceback" not in server.log.read_text()
    assert statuses[200] > 100, "too few mutants are valid: the fuzz no longer reaches the engine"
