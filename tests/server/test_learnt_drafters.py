"""A server is told a drafter's name, or that of a base and a drafter, and answers as the base does."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.eagle import Kind, TinyEagle
from tests.processes import PATIENCE
from tests.servers import serving
from tests.tiny import VOCAB, reference_greedy, tokenizer
from tests.tiny_drafters import write_medusa, write_mlp_speculator

pytestmark = pytest.mark.slow

TEXT, NEW = "The quick brown fox", 12


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator"])
def test_it_generates_what_the_base_does(kind: str, named: bool, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    base, heads = tiny("llama2_gqa"), tmp_path / "heads"
    if kind == "medusa":
        write_medusa(heads, str(base), 64, 320)
    else:
        write_mlp_speculator(heads, str(base), 64, 320, inner=48)
    beside = (f"--model-id={base}", f"--speculative-config={json.dumps({'model': str(heads), 'method': kind})}")
    with serving(tmp_path, *((f"--model-id={heads}",) if named else beside)) as server:
        server.wait_ready()
        body = {"inputs": TEXT, "parameters": {"max_new_tokens": NEW, "details": True}}
        details = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()["details"]
        info = httpx.get(server.url + "/info", timeout=PATIENCE).json()
        counted = server.gauges()
    assert [token["id"] for token in details["tokens"]] == reference_greedy(base, tokenizer().encode(TEXT), NEW)
    assert (info["model_id"], info["speculate"]) == (str(heads if named else base), 3)
    assert any(name.startswith("vllm:spec_decode_num_drafts_total") for name in counted)


def test_layers_of_eagle_beside_a_model_draft_for_it(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    base = tiny("llama2_gqa")
    eagle = TinyEagle(Kind((0, 2), draft_vocab=100, own_head=True), 64, VOCAB).write(tmp_path / "eagle")
    config = {"method": "eagle3", "model": str(eagle), "num_speculative_tokens": 3}
    with serving(tmp_path, f"--model-id={base}", f"--speculative-config={json.dumps(config)}") as server:
        server.wait_ready()
        body = {"inputs": TEXT, "parameters": {"max_new_tokens": NEW, "details": True}}
        details = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()["details"]
        assert httpx.get(server.url + "/info", timeout=PATIENCE).json()["speculate"] == 3
        counted = server.gauges()
    assert [token["id"] for token in details["tokens"]] == reference_greedy(base, tokenizer().encode(TEXT), NEW)
    assert any(name.startswith("vllm:spec_decode_num_drafts_total") for name in counted)


def test_heads_of_another_model_end_the_start_with_both_numbers(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    heads = write_medusa(tmp_path / "heads", str(tiny("llama2_gqa")), 32, 320)
    with serving(tmp_path, f"--model-id={heads}") as server:
        assert server.process.wait(PATIENCE) != 0
        said = "the drafter reads hidden states of 32 numbers, the model's have 64"
        assert f"{heads}/config.json: {said}" in server.log.read_text()
