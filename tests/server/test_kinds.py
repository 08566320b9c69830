"""One model of each kind of block behind the whole server, where a test of its own has none: greedy as transformers."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.families.zoo import ZOO
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import READY_SECONDS, serving
from tests.tiny import BASE, reference_greedy, tokenizer, write_model

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "experts": ZOO["qwen2_moe"],
    "states": ZOO["mamba"],
    "traced": {"model_type": "nemotron", **BASE, "num_key_value_heads": 4},
}
TEXT = "where does the river end? in the sea, as rivers do."
COUNT = 8


@pytest.mark.parametrize("kind", KINDS)
def test_generate_and_completions_answer_as_transformers(kind: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / kind, KINDS[kind])
    expected = reference_greedy(model, tokenizer()(TEXT).input_ids, COUNT)
    limits = ("--max-total-tokens=128", "--max-batch-total-tokens=512")
    with serving(tmp_path, f"--model-id={model}", *TINY_OPTIONS, *limits) as server:
        server.wait_ready(2 * READY_SECONDS)
        asked = {"inputs": TEXT, "parameters": {"max_new_tokens": COUNT, "details": True}}
        answer = httpx.post(server.url + "/generate", json=asked, timeout=PATIENCE).json()
        assert [token["id"] for token in answer["details"]["tokens"]] == expected
        body = {"prompt": TEXT, "max_tokens": COUNT, "temperature": 0}
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).json()
        assert answer["choices"][0]["text"] == tokenizer().decode(expected, skip_special_tokens=True)
