"""Triton's own HTTP client, whose answers are those of `/v1` and of transformers."""

from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers

from tests.clients.environments import run_script
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

KEY = "a-key"
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog"]
NEW = 8


def completions(server: Server, new: int = NEW) -> list[str]:
    """What `/v1/completions` answers to each text, greedily."""
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"prompt": TEXTS, "max_tokens": new, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
    return [choice["text"] for choice in answer.json()["choices"]]


def test_tritons_client_gets_what_the_other_protocols_answer(tiny_model: Path, tmp_path: Path) -> None:
    options = (
        f"--api-key={KEY}",
        "--served-model-name=org/tiny",
        "--max-batch-size=8",
        "--max-batch-prefill-tokens=64",
    )
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        answer = run_script("triton", "triton_http", url=server.url, key=KEY, model="org/tiny", texts=TEXTS, new=NEW)
        expected = completions(server)
        gauges = server.gauges()
    assert answer["whole"] == answer["at once"] == answer["asyncio"] == expected
    assert answer["compressed"] == expected[:1]
    assert answer["with prompt"] == [TEXTS[0] + expected[0]]
    assert answer["id"] == "7"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    longest = max(map(len, ids))
    assert answer["ids"] == [each + [0] * (longest - len(each)) for each in ids]
    assert answer["mask"] == [[1] * len(each) + [0] * (longest - len(each)) for each in ids]
    assert answer["json"] == [answer["ids"], answer["mask"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor(ids[:1])).logits.numpy()
    np.testing.assert_allclose(answer["logits"], logits, atol=1e-4 * np.abs(logits).max())
    likeliest = np.argsort(-logits[0, -1])[:3].tolist()
    assert [int(each.split(":")[1]) for each in answer["classes"]] == likeliest
    assert answer["live"] == [True, True, True] and answer["unknown model is ready"] is False
    assert {"statistics", "binary_tensor_data", "classification"} <= {*answer["server"]["extensions"]}
    assert answer["metadata"]["versions"] == ["1"]
    assert answer["config"]["model_transaction_policy"] == {"decoupled": True}
    assert [each["name"] for each in answer["index"]] == ["org/tiny", "org/tiny_tokenizer", "org/tiny_logits"]
    [statistics] = answer["statistics"]["model_stats"]
    inferences = 3 * len(TEXTS) + 3
    assert statistics["inference_stats"]["success"]["count"] == inferences == statistics["inference_count"]
    assert gauges['nv_inference_request_success{model="model",version="1"}'] == inferences
    assert answer["no key"][0] == "401" and "key" in answer["no key"][1]
    assert answer["no model"] == ["404", "the model `none` does not exist; this server serves `org/tiny`"]
    assert answer["no input"][0] == "400" and "unexpected inference input 'text_output'" in answer["no input"][1]
    assert answer["load"][0] == "400" and "fixed" in answer["load"][1]
