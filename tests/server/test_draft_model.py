"""A draft model of a whole server: from an option of the launcher to the engine that loads it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE, ROOT
from tests.servers import serving
from tests.tiny import reference_greedy, tokenizer

pytestmark = pytest.mark.slow

LIMITS = ("--max-batch-size=1", "--max-batch-prefill-tokens=32", "--max-batch-total-tokens=128")


def test_a_draft_model_that_is_named_by_a_relative_path_drafts(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model, draft = tiny("llama2_gqa"), os.path.relpath(tiny("llama3"), ROOT)
    config = json.dumps({"method": "draft_model", "model": draft, "num_speculative_tokens": 4})
    with serving(tmp_path, f"--model-id={model}", f"--speculative-config={config}", *LIMITS) as server:
        server.wait_ready()
        assert httpx.get(server.url + "/info", timeout=PATIENCE).json()["speculate"] == 4
        body = {"inputs": "The quick brown fox", "parameters": {"max_new_tokens": 20, "details": True}}
        answer = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()
        assert "vllm:spec_decode_num_drafts_total" in httpx.get(server.url + "/metrics", timeout=PATIENCE).text
    ids = [token["id"] for token in answer["details"]["tokens"]]
    assert ids == reference_greedy(model, tokenizer().encode("The quick brown fox"), 20)[: len(ids)]
