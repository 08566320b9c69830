"""Triton's own gRPC client, whose answers are those of `/v1` and of transformers."""

import re
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers

from tests.clients.environments import run_script
from tests.conftest import Checkpoints
from tests.processes import PATIENCE
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

KEY = "a-key"
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog"]
NEW = 8
LONG = 1900  # tokens, which take seconds


def grpc_address(server: Server) -> str:
    found = re.search(r"gRPC on (\S+)", server.log.read_text())
    assert found is not None, server.log.read_text()
    return found[1]


def test_tritons_client_gets_what_the_other_protocols_answer(tiny_model: Path, tmp_path: Path) -> None:
    options = (f"--api-key={KEY}", "--served-model-name=org/tiny", "--max-batch-size=8", "--grpc-port=0")
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        job = {"url": grpc_address(server), "key": KEY, "model": "org/tiny", "texts": TEXTS, "new": NEW, "long": LONG}
        answer = run_script("triton", "triton_grpc", **job)
        body = {"prompt": TEXTS, "max_tokens": NEW, "temperature": 0}
        headers = {"authorization": f"Bearer {KEY}"}
        choices = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).json()["choices"]
        wait_idle(server)
    expected = [choice["text"] for choice in choices]
    assert answer["whole"] == answer["at once"] == answer["asyncio"] == expected
    assert answer["asyncio stream"] == expected[0]
    streamed = answer["streamed"]
    names = [*map(str, range(len(TEXTS))), "after"]
    assert streamed["texts"] == dict(zip(names, [*expected, expected[0]], strict=True))
    assert streamed["finals"] == sorted(names)
    assert streamed["order"] != sorted(streamed["order"], key=streamed["order"].index), "the answers do not interleave"
    assert len(streamed["errors"]) == 1 and "unexpected inference input 'text_output'" in streamed["errors"][0]
    assert 3 <= answer["cancelled"] < LONG
    assert answer["live"] == [True, True, True] and answer["decoupled"] is True
    assert answer["metadata"]["versions"] == ["1"] and "statistics" in answer["server"]["extensions"]
    assert [each["name"] for each in answer["index"]] == ["org/tiny", "org/tiny_tokenizer", "org/tiny_logits"]
    [statistics] = answer["statistics"]
    assert int(statistics["inference_stats"]["success"]["count"]) == 4 * len(TEXTS) + 2
    assert "UNAUTHENTICATED" in answer["no key"][0] and "NOT_FOUND" in answer["no model"][0]
    assert answer["no model"][1] == "the model `none` does not exist; this server serves `org/tiny`"
    assert "INVALID_ARGUMENT" in answer["no input"][0] and "INVALID_ARGUMENT" in answer["load"][0]
    assert "DEADLINE" in answer["too late"][0].upper() + answer["too late"][1].upper()
    assert answer["timeout"] == [
        "StatusCode.DEADLINE_EXCEEDED",
        "the request was not finished within its timeout of 0.02 s",
    ]


def wait_idle(server: Server) -> None:
    """Fails unless what clients have cancelled ends, long before it would by itself."""
    deadline = time.monotonic() + PATIENCE
    while server.gauges()["tgi_batch_current_size"]:
        assert time.monotonic() < deadline, "a cancelled request goes on"
        time.sleep(0.05)


@torch.no_grad()
def test_the_client_of_the_post_that_serves_bloom_runs_word_for_word(zoo: Checkpoints, tmp_path: Path) -> None:
    """`bloom_3b_tokenizer`, then `bloom_3b` for logits, over and over: the ids are those of `generate`."""
    checkpoint = zoo("bloom")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with serving(
        tmp_path, f"--model-id={checkpoint}", "--served-model-name=bloom_3b", "--grpc-port=0", "--max-total-tokens=96"
    ) as server:
        server.wait_ready()
        job = {"model": "bloom_3b", "texts": TEXTS, "max_length": 40, "eos": tokenizer.eos_token_id}
        answer = run_script("triton", "triton_bloom", url=grpc_address(server), **job)
    ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    assert answer["ready"] == [True, True, True]
    assert answer["ids"] == ids[0].tolist() and answer["mask"] == [[1] * ids[0].shape[1]]
    logits = model(ids[0]).logits.numpy()
    np.testing.assert_allclose(answer["logits"], logits, atol=1e-4 * np.abs(logits).max())
    assert answer["by its own name"] == answer["logits"]
    generated = [model.generate(each, max_length=40, do_sample=False)[0].tolist() for each in ids]
    assert answer["generated"] == generated
