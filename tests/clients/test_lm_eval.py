"""lm-eval's scores over `/v1/completions` are transformers' own, to the last digit that float32 has."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.clients.environments import run_script
from tests.servers import Server, serving
from tests.tiny import tokenizer

pytestmark = pytest.mark.slow

ROWS: list[dict[str, Any]] = [
    {"question": "The quick brown fox", "choices": ["jumps over", "sleeps", "def add(a, b):"], "label": 0},
    {"question": "def add(a", "choices": ["b):", "return a + b"], "label": 1},
    {"question": "é€", "choices": ["ü", "x"], "label": 1},
]


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, f"--model-id={tiny_model}", "--max-batch-size=8", "--max-batch-prefill-tokens=64") as server:
        server.wait_ready()
        yield server


def log_likelihood(model: Any, context: str, continuation: str) -> tuple[float, bool]:
    """Of `continuation` behind `context`, and whether greedy decoding would have written it."""
    prompt, ids = (tokenizer().encode(text, add_special_tokens=False) for text in (context, context + continuation))
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = range(len(prompt), len(ids))
    greedy = all(scores[i - 1].argmax() == ids[i] for i in wanted)
    return math.fsum(scores[i - 1, ids[i]] for i in wanted), greedy


def test_the_log_likelihood_of_every_choice_is_transformers(server: Server, tiny_model: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    answers = run_script("lm_eval", "lm_eval_client", url=server.url, kind="choices", rows=ROWS)
    for row, scored in zip(ROWS, answers, strict=True):
        assert len(scored) == len(row["choices"])
        for choice, [(found, greedy)] in zip(row["choices"], scored, strict=True):
            expected, by_greed = log_likelihood(model, row["question"], " " + choice)
            assert found == pytest.approx(expected, abs=1e-3)
            assert greedy == by_greed
