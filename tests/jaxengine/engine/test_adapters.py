"""A step mixes adapters, and each request has the logits that PEFT gives it with its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxengine.request.event import FinishReason
from tests.jaxengine.engines import ask, load, logprob_rows, prompt, serve
from tests.tiny import VOCAB
from tests.tiny_adapter import adapted, logits

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
FAMILIES = (
    *("llama2_gqa", "bloom", "falcon_40b", "gemma2", "gpt2", "gpt_bigcode", "gptj", "mixtral", "phi3", "qwen2_moe"),
    *("qwen3", "mamba"),
)
WITH_ENCODER = ("flan_t5", "bart")
TARGETS = {
    "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],  # else PEFT takes the experts too, as parameters of three axes
    "mamba": ["in_proj", "x_proj"],  # PEFT refuses out_proj, and what it adds to dt_proj transformers does not read
}
NEW = 6


def expected(model: Any, ids: list[int], answer: list[int]) -> np.ndarray:
    """Log-probabilities [answer, V] that lead to each token of `answer`."""
    if model.config.is_encoder_decoder:
        decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *answer[:-1]]])
        with torch.inference_mode():
            rows = model(torch.tensor([ids]), decoder_input_ids=decoder_ids, use_cache=False).logits[0]
    else:
        rows = torch.tensor(logits(model, [*ids, *answer])[len(ids) - 1 : -1])
    return torch.log_softmax(rows, -1).numpy()[:, :VOCAB]


@pytest.mark.parametrize("name", [*FAMILIES, *WITH_ENCODER])
def test_a_batch_has_the_logits_of_peft(
    name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints, tmp_path: Path, compile_cache: None
) -> None:
    directory = (seq2seq if name in WITH_ENCODER else tiny if name.startswith("llama") else zoo)(name)
    targets = TARGETS.get(name, "all-linear")
    models = {f"a{i}": adapted(directory, seed=i, r=(4, 8, 2)[i], target_modules=targets) for i in range(3)}
    for key, model in models.items():
        model.save_pretrained(tmp_path / key)
    engine = load(directory, adapters={key: tmp_path / key for key in models}, max_batch_size=6)
    whose = ["a0", "", "a1", "a2", "a1", ""]
    requests = [
        ask(i, prompt(5 + 7 * i, seed=i), max_tokens=NEW, logprobs=VOCAB, adapter=key) for i, key in enumerate(whose)
    ]
    answers = serve(engine, requests)
    for request, key in zip(requests, whose, strict=True):
        answer = answers[request.id]
        assert answer.finish is FinishReason.LENGTH, answer.error
        ours, ids = logprob_rows(answer.tokens), list(request.prompt)
        if key:
            theirs = expected(models[key], ids, answer.ids)
        else:
            with models["a0"].disable_adapter():
                theirs = expected(models["a0"], ids, answer.ids)
        relative = 1e-3 if name == "flan_t5" else 0  # does not scale scores, so that loud adapters make large ones
        who = f"request {request.id} of {key or 'the base'}"
        np.testing.assert_allclose(ours, theirs, rtol=relative, atol=1e-3, err_msg=who)
    assert engine.stats().compiles_after_warmup == 0
