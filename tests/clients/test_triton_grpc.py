"""Triton's own gRPC client, whose answers are those of `/v1` and of transformers, also as a post on BLOOM calls it."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.clients.environments import run_script
from tests.clients.test_triton_http import KEY, NEW, TEXTS, completions
from tests.conftest import Checkpoints
from tests.gateway.processes.test_grpc import address
from tests.processes import PATIENCE
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

MODEL = "org/tiny"
LONG = 64
SMALL = ("--max-batch-size=8", "--max-batch-prefill-tokens=64", "--grpc-port=0")


def by_name(listed: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in listed]


def logits(model: Any, ids: list[list[int]]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor(ids)).logits.numpy())


def served(tiny_model: Path, directory: Path) -> tuple[dict[str, Any], list[str], list[str], dict[str, float]]:
    options = (f"--api-key={KEY}", f"--served-model-name={MODEL}", *SMALL)
    with serving(directory, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        asked = {"url": address(server), "key": KEY, "model": MODEL, "texts": TEXTS, "new": NEW, "long": LONG}
        answer = run_script("triton", "triton_grpc", **asked)
        return answer, completions(server), completions(server, LONG), idle(server)


def idle(server: Server) -> dict[str, float]:
    """The gauges, once nothing runs any more: what was cancelled has ended. Fails after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while (gauges := server.gauges())["tgi_batch_current_size"]:
        assert time.monotonic() < deadline, "a cancelled request goes on"
        time.sleep(0.05)
    return gauges


def test_tritons_client_gets_what_the_other_protocols_answer(tiny_model: Path, tmp_path: Path) -> None:
    answer, expected, long, gauges = served(tiny_model, tmp_path)
    assert answer["live"] == [True, True, True] and answer["id"] == "7"
    for way in ("whole", "futures", "asyncio", "asyncio stream"):
        assert answer[way] == expected, way
    stream = answer["stream"]
    assert stream["texts"] == [*long[:2], expected[2]], "the last was asked just before stop_stream"
    assert stream["finals"] == ["0", "1", "error"] and stream["changes"] > 2, "two interleave"
    [error] = stream["errors"]
    assert "the model `none` does not exist" in error
    assert all("CANCELLED" in each for each in answer["cancelled"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    reference = logits(model, answer["ids"])
    np.testing.assert_allclose(answer["logits"], reference, atol=1e-4 * np.abs(reference).max())
    assert [int(each.split(":")[1]) for each in answer["classes"]] == np.argsort(-reference[0, -1])[:3].tolist()
    assert {"statistics", "binary_tensor_data", "classification"} <= {*answer["server"]["extensions"]}
    assert answer["metadata"]["versions"] == ["1"] and "text_input" in by_name(answer["metadata"]["inputs"])
    assert answer["config"]["config"]["model_transaction_policy"] == {"decoupled": True}
    assert by_name(answer["index"]["models"]) == [MODEL, f"{MODEL}_tokenizer", f"{MODEL}_logits"]
    [statistics] = answer["statistics"]["model_stats"]
    inferences = 4 * len(TEXTS) + 1 + 3
    assert int(statistics["inference_count"]) == int(statistics["inference_stats"]["success"]["count"]) == inferences
    assert int(statistics["inference_stats"]["fail"]["count"]) >= 1, "the cancelled one"
    assert gauges['nv_inference_request_success{model="model",version="1"}'] == inferences
    assert answer["log settings"]["settings"]["log_info"] == {"bool_param": True}
    assert answer["trace settings"]["settings"]["trace_level"] == {"value": ["OFF"]} and answer["memory"] == {}
    assert answer["no key"][0] == "StatusCode.UNAUTHENTICATED" and "key" in answer["no key"][1]
    message = f"the model `none` does not exist; this server serves `{MODEL}`"
    assert answer["no model"] == ["StatusCode.NOT_FOUND", message]
    assert answer["no time"][0] == "StatusCode.DEADLINE_EXCEEDED"
    for refusal in ("load", "settings", "memory use"):
        assert answer[refusal][0] == "StatusCode.INVALID_ARGUMENT", refusal


@pytest.mark.parametrize("model", ["bloom_3b", "bloom_3b_logits"])
def test_the_post_on_bloom_gets_what_transformers_computes(zoo: Checkpoints, bloom: Server, model: str) -> None:
    text, length = "the quick brown", 24
    answer = run_script("triton", "triton_bloom", url=address(bloom), model=model, text=text, length=length)
    reference = transformers.AutoModelForCausalLM.from_pretrained(zoo("bloom"), dtype=torch.float32).eval()
    ids = transformers.AutoTokenizer.from_pretrained(zoo("bloom"))(text, return_tensors="pt")["input_ids"]
    expected = logits(reference, ids.tolist())
    np.testing.assert_allclose(answer["logits"], expected, atol=1e-4 * np.abs(expected).max())
    whole = reference.generate(ids, max_length=length, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert answer["ids"] == whole.tolist()


@pytest.fixture(scope="module")
def bloom(zoo: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Any:
    options = ("--served-model-name=bloom_3b", *SMALL)
    with serving(tmp_path_factory.mktemp("bloom"), f"--model-id={zoo('bloom')}", *options) as server:
        server.wait_ready()
        yield server
