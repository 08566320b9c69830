"""Whole engines that see are transformers' whole models: logits and greedy ids, however prompts are cut and shared.

Five ways to see: tiles whose tokens see what is before them, a rope with three axes, images whose tokens see each other
behind windows, and layers that attend to the tiles of a run, or to the last image.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.plan import Plan
from jaxengine.request.resume import Resume
from jaxengine.request.sequence import Request
from tests.jaxengine.drafting import drafting, plain
from tests.jaxengine.engines import Answer, alone, fail_once, serve
from tests.jaxengine.seeing import TOLERANCE, Picture, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

CHUNK = 32  # tokens of a step
WIDE, TALL, ODD = noise(64, 40), noise(40, 64, 1), noise(52, 61, 2)
ONE, BEHIND = "What is {} there?", "What is there, in front of a very long river, is a dog {} or a cat?"
TWO = "user: describe {} and then this one: {} these images end the river"


class Seeing:
    """An engine, and transformers' model of the same checkpoint."""

    def __init__(self, directory: Path, name: str, **options: object) -> None:
        self.name = name
        self.engine = load_seeing(write_vision(directory, name), max_batch_prefill_tokens=CHUNK, **options)
        self.reference = Reference(directory / name, name)

    def prompt(self, text: str, *pictures: Picture) -> SeenPrompt:
        vision = self.engine.runner.shapes.spec.vision
        assert vision is not None
        return SeenPrompt.of(self.reference, vision, text, pictures)

    @property
    def tokens(self) -> int:
        return self.engine.description.vocab_size

    def assert_answered(self, prompt: SeenPrompt, answer: Answer) -> None:
        """It is transformers' answer, as far as it was asked for logprobs."""
        expected = prompt.logprobs(self.tokens, answer.ids)
        first = len(prompt.ids) - 1
        assert answer.ids == expected[first:-1].argmax(-1).tolist()
        found = [*answer.prompt[1:], *answer.tokens]
        np.testing.assert_allclose(logprob_rows(found), expected[-1 - len(found) : -1], atol=TOLERANCE)


@pytest.fixture(scope="module", params=["llava_next", "qwen2_5_vl", "gemma3", "mllama", "idefics"])
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compile_cache: None
) -> Iterator[Seeing]:
    made = Seeing(tmp_path_factory.mktemp("seeing"), request.param)
    yield made
    assert made.engine.stats().compiles_after_warmup == 0


@pytest.mark.parametrize("text", [ONE, "{} What is there?", "What is there? {}", BEHIND, "A dog {}" + BEHIND])
def test_logits_are_transformers_wherever_a_picture_stands(seeing: Seeing, text: str) -> None:
    """The longer prompts come in chunks, which cut pictures where that may be."""
    pictures = [WIDE, TALL][: text.count("{}")]
    prompt, before = seeing.prompt(text, *pictures), seeing.engine.stats()
    whole = {"prompt_logprobs": True, "logprobs": seeing.tokens}
    answer = alone(seeing.engine, prompt.ask(1, max_tokens=6, **whole))
    seeing.assert_answered(prompt, answer)
    chunks = seeing.engine.stats().steps - before.steps - 5
    assert chunks == 1 if len(prompt.ids) <= CHUNK else chunks > 1


def test_pictures_one_behind_another_are_seen_together_and_those_behind_a_text_alone(seeing: Seeing) -> None:
    prompt = seeing.prompt("A dog {}{} {} is what? {}", WIDE, TALL, ODD, WIDE)
    whole = {"prompt_logprobs": True, "logprobs": seeing.tokens}
    seeing.assert_answered(prompt, alone(seeing.engine, prompt.ask(1, max_tokens=6, **whole)))


def test_two_pictures_are_seen_in_their_order(seeing: Seeing) -> None:
    prompts = [seeing.prompt(TWO, *pictures) for pictures in ((WIDE, TALL), (TALL, WIDE), (WIDE, WIDE))]
    answers = [alone(seeing.engine, each.ask(1, max_tokens=4, logprobs=seeing.tokens)) for each in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        seeing.assert_answered(prompt, answer)
    first = [logprob_rows(each.tokens[:1]) for each in answers]
    assert np.abs(first[0] - first[1]).max() > 10 * TOLERANCE < np.abs(first[0] - first[2]).max()


def test_among_neighbours_with_other_pictures_and_without(seeing: Seeing) -> None:
    single = [seeing.prompt(text, picture) for text, picture in ((ONE, TALL), (BEHIND, ODD), (ONE, WIDE))]
    pairs = [seeing.prompt(TWO, ODD, WIDE), seeing.prompt(TWO, TALL, TALL)]
    prompts = [*single, seeing.prompt("What is there?"), *pairs]
    answers = serve(seeing.engine, asked(seeing, prompts))
    for number, prompt in enumerate(prompts):
        seeing.assert_answered(prompt, answers[number])


def asked(seeing: Seeing, prompts: Iterable[SeenPrompt], tokens: int = 6) -> list[Request]:
    return [each.ask(n, max_tokens=tokens + n % 3, logprobs=seeing.tokens) for n, each in enumerate(prompts)]


def test_behind_a_shared_prefix_only_if_the_picture_is_the_same(seeing: Seeing) -> None:
    text = "A dog, or a cat {} " * 2 + "What is in the picture? {}"
    whole = [seeing.prompt(text, WIDE, ODD, last) for last in (WIDE, TALL)]
    other = seeing.prompt(text, TALL, ODD, WIDE)
    page = seeing.engine.description.page_size
    serve(seeing.engine, [dataclasses.replace(whole[0].ask(1, max_tokens=1), salt=b"shared")])
    alike = (len(whole[0].ids) - 1, whole[1].images[2].offset, other.images[0].offset)  # so many tokens are the same
    for prompt, tokens in zip((*whole, other), alike, strict=True):
        again = dataclasses.replace(prompt.ask(2, max_tokens=4, logprobs=seeing.tokens), salt=b"shared")
        answer = serve(seeing.engine, [again])[2]
        assert answer.cached_tokens == tokens // page * page
        seeing.assert_answered(prompt, answer)


def test_the_same_picture_is_encoded_once(seeing: Seeing) -> None:
    fresh = noise(50, 47, 3)
    prompts = [seeing.prompt(TWO, fresh, fresh), seeing.prompt(ONE, fresh)]
    before = seeing.engine.stats()
    for prompt in prompts:
        alone(seeing.engine, prompt.ask(1, max_tokens=2))
    after = seeing.engine.stats()
    assert after.images_encoded - before.images_encoded == 1
    assert after.images_reused - before.images_reused == 2


def test_after_a_failed_step_pictures_are_encoded_anew(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [seeing.prompt(TWO, ODD, WIDE), seeing.prompt(BEHIND, TALL)]
    serve(seeing.engine, asked(seeing, prompts))
    before = seeing.engine.stats().images_encoded
    fail_once(seeing.engine, monkeypatch, at=2)
    failures = seeing.engine.step_failures
    answers = serve(seeing.engine, [dataclasses.replace(each, salt=b"fail") for each in asked(seeing, prompts)])
    assert seeing.engine.step_failures == failures + 1
    assert seeing.engine.stats().images_encoded > before
    for number, prompt in enumerate(prompts):
        seeing.assert_answered(prompt, answers[number])


@contextmanager
def preempting(engine: Engine, steps: tuple[int, ...]) -> Iterator[None]:
    """In these steps all running requests lose their pages, as if others needed them."""
    scheduler, plan, number, due = engine.scheduler, engine.scheduler.plan, itertools.count(), [*steps]

    def after_preemption(*only: Any) -> Plan:
        if due and next(number) >= due[0]:
            if scheduler.batch.step_in_flight:
                return Plan()  # the step before is completed first
            due.pop(0)
            for sequence in [*scheduler.batch.running]:
                scheduler._preempt(sequence)
        return plan(*only)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "plan", after_preemption)
        yield


def test_after_preemption(seeing: Seeing) -> None:
    """In the middle of prompts, and of answers. Nothing of them is cached."""
    prompts = [seeing.prompt(TWO, ODD, WIDE), seeing.prompt(BEHIND, TALL), seeing.prompt(ONE, WIDE)]
    engine, before = seeing.engine, seeing.engine.stats().preemptions
    with preempting(engine, (1, 2, 9)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.scheduler.tables, "prefix_cache", False)
        answers = serve(engine, asked(seeing, prompts, tokens=12))
    assert engine.stats().preemptions >= before + 6
    for number, prompt in enumerate(prompts):
        seeing.assert_answered(prompt, answers[number])


def test_beams_see_what_their_prompt_has(seeing: Seeing) -> None:
    prompt = seeing.prompt(TWO, WIDE, ODD)
    (beams,) = [answer.beams for answer in serve(seeing.engine, [search(prompt)]).values()]
    assert len(beams) == 2
    for beam in beams:
        ids = [token.id for token in beam.tokens]
        expected = prompt.logprobs(seeing.tokens, ids)[len(prompt.ids) - 1 : -1]
        found = [token.logprob for token in beam.tokens]
        np.testing.assert_allclose(found, expected[np.arange(len(ids)), ids], atol=TOLERANCE)


def search(prompt: SeenPrompt) -> Request:
    return dataclasses.replace(prompt.ask(1, max_tokens=6), beam_search=BeamSearch(width=2))


def test_an_answer_that_another_engine_began_goes_on(seeing: Seeing) -> None:
    prompt = seeing.prompt(BEHIND, WIDE)
    whole = alone(seeing.engine, prompt.ask(1, max_tokens=9, logprobs=seeing.tokens))
    begun = dataclasses.replace(prompt.ask(2, max_tokens=9), resume=Resume(tuple(whole.ids[:4])))
    assert alone(seeing.engine, begun).ids == whole.ids[4:]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "mllama"])
def test_drafts_behind_pictures_are_verified_by_what_they_see(name: str, tmp_path: Path, compile_cache: None) -> None:
    """Steps that verify have several tokens of a row, whose rope positions are not their own, or that see pictures."""
    made = Seeing(tmp_path, name, speculate=3, every_bucket=True)
    prompts = [made.prompt(BEHIND, WIDE), made.prompt(TWO, ODD, TALL)]
    requests = asked(made, prompts, tokens=20)
    with drafting(made.engine, plain(made.engine, requests)) as drafts:
        answers = serve(made.engine, requests)
    told = drafts.stats()
    assert 0 < sum(told["accepted_draft_tokens"]) < told["draft_tokens"]
    for number, prompt in enumerate(prompts):
        made.assert_answered(prompt, answers[number])
