"""The mock engine does what tests of gateways go by."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from jaxengine.architecture.picture import PictureShape
from jaxengine.request.cached_pages import CachedPages
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.image import Image
from jaxengine.request.interface import StepResult
from jaxengine.request.resume import Resume
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.rpc.page_keys import cache_name, root_key, short_keys
from tests.engine_mock import EOS, MockEngine, MockOptions, continuation

PROMPT = [*range(1, 11)]


def ask(number: int, prompt: list[int], *generated: int, **params: object) -> Request:
    wanted = SamplingParams(**{"max_tokens": 9, "temperature": 0, "seed": 0, **params})  # type: ignore[arg-type]
    return Request(number, prompt, wanted, resume=Resume(generated) if generated else None)


def answer(engine: MockEngine, request: Request) -> tuple[list[int], Event, list[StepResult]]:
    """Its ids, its first event with the finish of the last, and the steps."""
    engine.submit(request)
    results: list[StepResult] = []
    while not engine.idle:
        result = engine.step()
        assert result is not None
        results.append(result)
    events = [event for result in results for event in result.events]
    assert [event.first for event in events] == [True] + [False] * (len(events) - 1)
    ids = [token.id for event in events for token in event.tokens]
    return ids, replace(events[0], finish=events[-1].finish), results


@pytest.mark.parametrize("script", [(), (7, 8, 9, EOS, 11)], ids=["function", "script"])
@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_a_resumed_answer_is_the_rest_of_the_whole(script: tuple[int, ...], tokens_per_step: int) -> None:
    engine = MockEngine(MockOptions(script=script, tokens_per_step=tokens_per_step))
    whole, told, _ = answer(engine, ask(1, PROMPT))
    assert whole == ([*script[:4]] if script else continuation(PROMPT, 9))
    assert told.finish is (FinishReason.EOS if script else FinishReason.LENGTH)
    for cut in range(1, len(whole)):
        rest, resumed, _ = answer(engine, ask(2, PROMPT, *whole[:cut]))
        assert (rest, resumed.finish) == (whole[cut:], told.finish)


def test_what_the_engine_refuses_to_resume_the_mock_refuses() -> None:
    engine = MockEngine(MockOptions())
    with pytest.raises(ValueError, match=r"resume\.generated has 9 tokens, not fewer than max_tokens 9"):
        engine.submit(ask(1, PROMPT, *range(9)))
    assert engine.idle


def test_prompts_are_found_again_until_others_take_their_pages() -> None:
    options = MockOptions(page_size=4, prefix_pages=3, prefill_seconds_per_page=0.001)
    engine = MockEngine(options)
    assert engine.description.prefix_cache and not MockEngine(MockOptions()).description.prefix_cache
    root = root_key(cache_name("mock/model", "0123abc"), b"")
    first, second = list(short_keys(root, PROMPT, 4)), list(short_keys(root, [9, *PROMPT], 4))

    def read(prompt: list[int]) -> tuple[int, int, int, list[int], list[int]]:
        """Tokens found, tokens computed, pages waited for; keys that have come and gone."""
        _, told, steps = answer(engine, ask(1, prompt, max_tokens=1))
        pages = steps[0].pages or CachedPages(False, [], [])
        waited = round(steps[0].seconds / options.prefill_seconds_per_page)
        return told.cached_tokens, steps[0].prefill_tokens, waited, sorted(pages.cached), sorted(pages.uncached)

    assert read(PROMPT) == (0, 10, 3, sorted(first), [])
    assert read(PROMPT) == (8, 2, 1, [], [])
    assert read([9, *PROMPT]) == (0, 11, 3, sorted(second), first[1:])
    assert read(PROMPT[:8]) == (4, 4, 1, first[1:], second[1:])  # the last page is computed in any case
    assert engine.stats().cached_prompt_tokens == 12


def test_prompts_are_left_to_compute_until_their_first_step() -> None:
    engine = MockEngine(MockOptions(max_batch_size=1))
    for number in range(3):
        engine.submit(ask(number, PROMPT, max_tokens=1))
    left = [engine.stats().queued_prefill_tokens]
    engine.cancel(2)
    while engine.step():
        left.append(engine.stats().queued_prefill_tokens)
    assert left == [30, 10, 0]


def test_an_adapter_has_the_digest_of_its_path() -> None:
    engine = MockEngine(MockOptions(max_loras=1, lora_adapters=("a=org/a",)))
    assert [adapter.digest for adapter in engine.adapters()] == [sha256(b"org/a").digest()]


def test_images_are_seen_told_apart_and_counted() -> None:
    engine = MockEngine(MockOptions(image_token_id=9, page_size=2, prefix_pages=8))

    def shown(number: int, picture: int) -> Request:
        image = Image(bytes([picture]) * 32, 1, 3, PictureShape(((1, 4),), 8, 8), np.zeros((4, 12), np.float32))
        return replace(ask(number, [1, 9, 9, 9, 2], max_tokens=1), images=(image,))

    for number, picture, cached in [(1, 1, 0), (2, 1, 4), (3, 2, 0)]:
        _, told, _ = answer(engine, shown(number, picture))
        assert told.cached_tokens == cached
    assert (engine.stats().images_encoded, engine.stats().images_reused) == (2, 1)
    with pytest.raises(ValueError, match="outside of its images"):
        engine.submit(ask(4, [1, 9]))
    with pytest.raises(ValueError, match="images: this model does not see"):
        MockEngine(MockOptions()).submit(shown(1, 1))
