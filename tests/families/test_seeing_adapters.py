"""Adapters of models that see: behind pictures each request of a step has PEFT's logits, with its adapter or none."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import peft
import pytest
import torch

from tests.jaxengine.engines import serve
from tests.jaxengine.seeing import TOLERANCE, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_adapter import LOUD
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

TEXTS = ("describe {} there", "Two rivers end.")
# Matrices of the text's layers, those that attend to pictures among them.
OF_TEXT = r".*(language_model|model\.layers|gated_cross_attn_layers).*\.(q_proj|o_proj|up_proj|down_proj)"
NEW = 5


def with_adapter(reference: Reference, seed: int = 0) -> peft.PeftModel:
    """`reference.model`, into which PEFT puts an adapter whose every number matters."""
    torch.manual_seed(seed)
    wrapped = peft.get_peft_model(reference.model, peft.LoraConfig(target_modules=OF_TEXT, r=4, lora_alpha=6))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(LOUD * torch.randn(parameter.shape))
    return wrapped.eval()


@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_5_vl", "qwen3_vl", "mllama", "idefics"])
def test_logits_behind_pictures_are_peft_s(name: str, tmp_path: Path) -> None:
    directory = write_vision(tmp_path, name)
    reference = Reference(directory, name)
    adapted = with_adapter(reference)
    adapted.save_pretrained(tmp_path / "adapter")
    engine = load_seeing(directory, adapters={"a": tmp_path / "adapter"}, max_batch_size=4)
    vision = engine.runner.shapes.spec.vision
    assert vision is not None
    pictures = [noise(64, 40)]
    prompts = [SeenPrompt.of(reference, vision, text, pictures * text.count("{}")) for text in TEXTS]
    asked = [(prompt, adapter) for prompt in prompts for adapter in ("a", "")]
    whole = {"max_tokens": NEW, "logprobs": engine.description.vocab_size}
    answers = serve(engine, [prompt.ask(i, adapter=each, **whole) for i, (prompt, each) in enumerate(asked)])
    for number, (prompt, adapter) in enumerate(asked):
        answer = answers[number]
        with nullcontext() if adapter else adapted.disable_adapter():
            expected = prompt.logprobs(engine.description.vocab_size, answer.ids)[len(prompt.ids) - 1 : -1]
        np.testing.assert_allclose(logprob_rows(answer.tokens), expected, atol=TOLERANCE, err_msg=f"{number} {adapter}")
    assert engine.stats().compiles_after_warmup == 0
    engine.close()
