"""Whole models that see: a tiny engine's answers to texts with pictures are transformers', for every way to see.

How prompts are cut and shared is in `test_images.py`, for three of these.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.jaxengine.engines import alone
from tests.jaxengine.seeing import TOLERANCE, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import SEEN, write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

NEW = 8  # tokens
LIMITS = {"max_image_patches": 128, "max_total_tokens": 160, "max_batch_size": 1, "max_batch_prefill_tokens": 96}
TEXTS = ("What is {} there?", "user: describe {} and {}", "Two rivers end.")
PICTURES = (noise(64, 40), noise(31, 90, 1))


@pytest.mark.parametrize("name", SEEN)
def test_an_answer_to_pictures_is_transformers(name: str, tmp_path: Path, compile_cache: None) -> None:
    engine = load_seeing(write_vision(tmp_path, name), **LIMITS)
    reference, vision = Reference(tmp_path / name, name), engine.runner.shapes.spec.vision
    assert vision is not None
    for number, text in enumerate(TEXTS):
        prompt = SeenPrompt.of(reference, vision, text, PICTURES[: text.count("{}")])
        vocabulary = engine.description.vocab_size
        answer = alone(engine, prompt.ask(number, max_tokens=NEW, logprobs=vocabulary, prompt_logprobs=True))
        expected = prompt.logprobs(vocabulary, answer.ids)
        found = logprob_rows([*answer.prompt[1:], *answer.tokens])
        np.testing.assert_allclose(found, expected[:-1], atol=TOLERANCE)
        assert answer.ids == expected[len(prompt.ids) - 1 : -1].argmax(-1).tolist()
    assert engine.stats().compiles_after_warmup == 0
