"""PaliGemma 2: every token of a prompt sees all of it, in layers that have a window too."""

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import serve
from tests.jaxengine.seeing import TOLERANCE, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import LAYER_TYPES, TEXT, write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

WINDOW, PAGE_SIZE = 8, 16
GEMMA2 = {"model_type": "gemma2", "sliding_window": WINDOW, "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 16}
NEW = 12  # tokens, enough to leave the prompt's end behind


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Engine]:
    text = {**TEXT, **GEMMA2, "num_image_tokens": 4}
    directory = write_vision(tmp_path_factory.mktemp("paligemma2"), "paligemma", text_config=text)
    return Reference(directory, "paligemma"), load_seeing(directory, max_batch_prefill_tokens=128)


def test_windows_hide_nothing_of_a_prompt(model: tuple[Reference, Engine]) -> None:
    """The second time nothing is shared: pages behind the windows are gone, and the last token would see them."""
    reference, engine = model
    vision, tokens = engine.runner.shapes.spec.vision, engine.description.vocab_size
    assert vision is not None
    text = "{}What is there" + " in front of a very long river" * 3
    seen = SeenPrompt.of(reference, vision, text, [noise(40, 64)])
    assert len(seen.ids) > WINDOW + 3 * PAGE_SIZE
    for number in (1, 2):
        answer = serve(engine, [seen.ask(number, max_tokens=NEW, logprobs=tokens)])[number]
        theirs = seen.logprobs(tokens, answer.ids)[len(seen.ids) - 1 : -1]
        np.testing.assert_allclose(logprob_rows(answer.tokens), theirs, atol=TOLERANCE)
        assert answer.cached_tokens == 0


def test_a_prompt_shares_the_pages_of_the_same_prompt_only(
    tmp_path_factory: pytest.TempPathFactory, compile_cache: None
) -> None:
    """What a page holds of a prompt's beginning depends on its end."""
    directory = write_vision(tmp_path_factory.mktemp("paligemma"), "paligemma")
    reference, engine = Reference(directory, "paligemma"), load_seeing(directory)
    vision, tokens, page = engine.runner.shapes.spec.vision, engine.description.vocab_size, engine.description.page_size
    assert vision is not None
    text, found = "{}What is there, in front of a very long river? ", []
    for number, end in enumerate(["dog", "dog", "cat"]):
        seen = SeenPrompt.of(reference, vision, text * (1 + page // len(text)) + end, [noise(40, 64)])
        answer = serve(engine, [seen.ask(number, max_tokens=NEW, logprobs=tokens)])[number]
        theirs = seen.logprobs(tokens, answer.ids)[len(seen.ids) - 1 : -1]
        np.testing.assert_allclose(logprob_rows(answer.tokens), theirs, atol=TOLERANCE)
        found.append(answer.cached_tokens)
    assert len(seen.ids) > page and found == [0, (len(seen.ids) - 1) // page * page, 0]
