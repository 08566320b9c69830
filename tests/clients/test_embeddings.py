"""Embeddings as the `openai` SDK and LangChain ask for them, against transformers' hidden states."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.clients.environments import run_script
from tests.servers import serving

pytestmark = pytest.mark.slow

KEY = "a-key"
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog " * 12]


@torch.no_grad()
def expected(directory: Path, ids: list[list[int]]) -> np.ndarray:
    """Means over all tokens, of unit length: f32 [texts, hidden]."""
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    means = [model(torch.tensor([each])).last_hidden_state[0].mean(0).numpy() for each in ids]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


def test_openais_sdk_and_langchain_get_the_vectors_of_the_reference(tiny_model: Path, tmp_path: Path) -> None:
    ids = transformers.AutoTokenizer.from_pretrained(tiny_model)(TEXTS)["input_ids"]
    options = (f"--api-key={KEY}", "--pooling=mean", "--max-batch-size=8", "--max-batch-prefill-tokens=64")
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        answer = run_script("modern", "openai_embeddings", url=server.url, key=KEY, texts=TEXTS, ids=ids)
    vectors = expected(tiny_model, ids)
    for kind in ("default", "floats", "ids", "async", "langchain"):
        np.testing.assert_allclose(answer[kind], vectors, atol=1e-5, err_msg=kind)
    np.testing.assert_allclose([answer["langchain query"]], vectors[:1], atol=1e-5)
    short = vectors[:1, :8] / np.linalg.norm(vectors[0, :8])
    np.testing.assert_allclose(answer["short"], short, atol=1e-5)
    assert answer["usage"] == [sum(map(len, ids))] * 2
    assert answer["refused"] == ["dimensions", "input", "input"]
