"""Every way to see through the whole engine: a prompt with two pictures in chunks, one behind a cached prefix, one with
a single picture, one with none.

How prompts are cut and shared otherwise is in `tests/jaxengine/engine/test_images.py`.
"""

from pathlib import Path

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import Answer, alone, serve
from tests.jaxengine.seeing import TOLERANCE, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import SEEN, write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

TEXT = "describe {} and then this one: {} these images"
OTHERS = ("What is {} there?", "Two rivers end.")
BUDGET = {"paligemma": 128}  # its prompts are computed in one step


@pytest.mark.parametrize("name", SEEN)
def test_the_engine_s_logits_are_transformers(name: str, tmp_path: Path) -> None:
    budget = BUDGET.get(name, 32)
    directory = write_vision(tmp_path, name)
    sizes = {"max_batch_size": 1, "max_batch_prefill_tokens": budget, "max_total_tokens": 256, "max_image_patches": 128}
    engine = load_seeing(directory, **sizes)
    engine.scheduler.saving.least_tokens = 16
    reference, vision = Reference(directory, name), engine.runner.shapes.spec.vision
    assert vision is not None
    pictures = [noise(64, 40), noise(40, 64, 1)]
    prompt = SeenPrompt.of(reference, vision, TEXT, pictures)
    before = engine.stats()
    whole = {"prompt_logprobs": True, "logprobs": engine.description.vocab_size}
    assert_seen(engine, prompt, alone(engine, prompt.ask(1, max_tokens=6, **whole)))
    chunks = engine.stats().steps - before.steps - 5
    least = -(-len(prompt.ids) // budget)  # a picture to encode may end a chunk before
    assert chunks == 1 if name == "paligemma" else chunks >= least
    serve(engine, [prompt.ask(2, max_tokens=1)])
    answer = serve(engine, [prompt.ask(3, max_tokens=6, logprobs=engine.description.vocab_size)])[3]
    assert answer.cached_tokens == (len(prompt.ids) - 1) // 16 * 16
    assert_seen(engine, prompt, answer)
    after = engine.stats()
    assert after.images_encoded == 2
    for number, text in enumerate(OTHERS, start=4):
        prompt = SeenPrompt.of(reference, vision, text, [noise(31, 90, 1)] * text.count("{}"))
        assert_seen(engine, prompt, alone(engine, prompt.ask(number, max_tokens=6, **whole)))
    assert engine.stats().compiles_after_warmup == before.compiles_after_warmup
    engine.close()


def assert_seen(engine: Engine, prompt: SeenPrompt, answer: Answer) -> None:
    """`answer` has transformers' logprobs and greedy ids."""
    expected = prompt.logprobs(engine.description.vocab_size, answer.ids)
    assert answer.ids == expected[len(prompt.ids) - 1 : -1].argmax(-1).tolist()
    found = [*answer.prompt[1:], *answer.tokens]
    np.testing.assert_allclose(logprob_rows(found), expected[-1 - len(found) : -1], atol=TOLERANCE)
