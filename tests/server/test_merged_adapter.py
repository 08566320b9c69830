"""A server is told an adapter's name, or that of a base and an adapter, and answers as PEFT does."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from tests.processes import PATIENCE
from tests.servers import serving
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

TEXT, NEW = "The quick brown fox", 12


@pytest.mark.parametrize("by", ["--merge-adapter", "--model-id"])
def test_it_generates_what_peft_does(by: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    base, adapter = tiny("llama2_gqa"), tmp_path / "adapter"
    model = adapted(base, seed=2)
    model.save_pretrained(adapter)
    names = [f"--model-id={base}", f"{by}={adapter}"][by == "--model-id" :]
    with serving(tmp_path, *names) as server:
        server.wait_ready()
        body = {"inputs": TEXT, "parameters": {"max_new_tokens": NEW, "details": True}}
        details = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()["details"]
        info = httpx.get(server.url + "/info", timeout=PATIENCE).json()
    prompt = Tokenizer.from_file(str(base / "tokenizer.json")).encode(TEXT).ids
    ids = _greedy(model, prompt)
    assert [token["id"] for token in details["tokens"]] == ids
    with model.disable_adapter():
        assert _greedy(model, prompt) != ids
    assert info["model_id"] == names[0].partition("=")[2]


def _greedy(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    with torch.inference_mode():
        made = model.generate(input_ids=torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
    return list(made[0, len(prompt) :].tolist())
