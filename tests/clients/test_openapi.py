"""The OpenAPI document under schemathesis: thousands of bodies made from it, right ones and wrong ones, at every route.

Each answer must be one the document foresees, in status, headers, media type and schema; a body the document forbids
must be refused, and nothing may be a 5xx. One check is left out: that whatever the document allows is accepted, since
it cannot tell rules over several fields, the vocabulary or the context. For more of it:

    SCHEMATHESIS_EXAMPLES=500 pytest tests/clients/test_openapi.py
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.environments import ENVIRONMENT, interpreter
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "5")  # of right bodies, per route
SECONDS = 1800


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[Server]:
    options = ("--max-batch-size=8", "--max-batch-prefill-tokens=64", "--max-total-tokens=96")
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        yield server


def test_every_route_answers_as_the_document_says(server: Server, tmp_path: Path) -> None:
    chosen = ("--phases=coverage,fuzzing", "--checks=all", "--exclude-checks=positive_data_acceptance", "--no-color")
    # One worker: with two, CPython 3.11 may fail in ast.parse ("recursion depth mismatch"), whose depth threads share.
    limits = (f"--max-examples={EXAMPLES}", "--max-response-time=60", "--seed=1", "--warnings=off", "--workers=1")
    patience = ("--suppress-health-check=all", "--request-timeout=120")  # a slow machine is no failure
    program = interpreter("schemathesis").parent / "schemathesis"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **ENVIRONMENT}
    command = [program, "run", f"{server.url}/openapi.json", *chosen, *limits, *patience]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    gauges = server.gauges()
    assert gauges['textgen_kv_pages{engine="0",state="used"}'] == 0
    assert gauges["tgi_batch_current_size"] == gauges["tgi_queue_size"] == 0
