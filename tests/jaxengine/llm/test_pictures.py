"""Pictures in-process: the prompts and answers are transformers', however a picture is given."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gateway.text.tokenizer import Tokenizer
from jaxengine.llm import LLM, Completion, SamplingParams
from jaxengine.llm.pictures import Pictures
from tests.engine_mock import MockEngine, MockOptions
from tests.gateway.seeing import data_url
from tests.jaxengine.shared_executables import shared_executables
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, mark, noise

pytestmark = pytest.mark.slow

WIDE, TALL = noise(64, 40), noise(40, 90, 1)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
TOLERANCE = 1e-3  # of logits in float32


@dataclass
class Seeing:
    llm: LLM
    reference: Reference

    def assert_answered(self, made: Completion, prompt: list[int], *pictures: Image.Image) -> None:
        assert made.prompt_ids == prompt
        logits = self.reference.logits(prompt + made.token_ids, pictures, len(prompt))[len(prompt) - 1 : -1]
        logits = logits[:, : Tokenizer.load(self.reference.directory).end]  # others are no tokens, and never drawn
        chosen = logits[np.arange(len(made.token_ids)), made.token_ids]
        np.testing.assert_allclose(chosen, logits.max(-1), atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    directory = write_vision(tmp_path_factory.mktemp("seeing"), "llava_next")
    with pytest.MonkeyPatch.context() as patch, shared_executables():
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        limits = {"max_batch_size": 4, "max_batch_prefill_tokens": 64, "max_total_tokens": 256}
        llm = LLM(directory, dtype="float32", use_tqdm_on_load=False, **limits)
    yield Seeing(llm, Reference(directory, "llava_next"))


def png() -> bytes:
    file = io.BytesIO()
    WIDE.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("form", ["pillow", "image", "image_pil", "image_url", "url", "path", "bytes"])
def test_a_chat_takes_a_picture_in_every_form(seeing: Seeing, tmp_path: Path, form: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    given = {
        "pillow": WIDE,
        "image": {"type": "image", "image": WIDE},
        "image_pil": {"type": "image_pil", "image_pil": WIDE},
        "image_url": {"type": "image_url", "image_url": {"url": data_url(png())}},
        "url": {"type": "image", "url": data_url(png())},
        "path": {"type": "image", "path": str(tmp_path / "a.png")},
        "bytes": {"type": "image", "image": png()},
    }[form]
    [made] = seeing.llm.chat([{"role": "user", "content": [given, "What is there?"]}], GREEDY, use_tqdm=False)
    seeing.assert_answered(made, seeing.reference.chat([WIDE, "What is there?"]), WIDE)


def test_pictures_of_several_chats_are_not_mixed_up(seeing: Seeing) -> None:
    contents: list[list[Any]] = [[WIDE, "a", TALL, "b"], [TALL, "a", WIDE, "b"], ["no picture"], [TALL, "c"]]
    made = seeing.llm.chat([[{"role": "user", "content": each}] for each in contents], GREEDY, use_tqdm=False)
    for each, content in zip(made, contents, strict=True):
        pictures = [part for part in content if not isinstance(part, str)]
        seeing.assert_answered(each, seeing.reference.chat(content), *pictures)


def test_a_prompt_in_vllms_words_has_pictures_where_it_says_or_in_front(seeing: Seeing) -> None:
    where = mark("llava_next")
    for text, expected in ((f"What is {where} there?", f"What is {where} there?"), ("What?", f"{where}What?")):
        prompt = {"prompt": text, "multi_modal_data": {"image": WIDE}}
        [made] = seeing.llm.generate(prompt, GREEDY, use_tqdm=False)
        seeing.assert_answered(made, seeing.reference.prompt(expected, [WIDE]), WIDE)
    both = {"prompt": f"{where} or {where}?", "multi_modal_data": {"image": [WIDE, TALL]}}
    [made, plain] = seeing.llm.generate([both, {"prompt": "What?"}], GREEDY, use_tqdm=False)
    seeing.assert_answered(made, seeing.reference.prompt(f"{where} or {where}?", [WIDE, TALL]), WIDE, TALL)
    assert plain.prompt == "What?"


def test_a_stream_sees(seeing: Seeing) -> None:
    messages = [{"role": "user", "content": [WIDE, "What is there?"]}]
    stream = seeing.llm.stream_chat(messages, GREEDY)
    assert "".join(stream) == seeing.llm.chat(messages, GREEDY, use_tqdm=False)[0].text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (["a <image>"], "must not spell <image>"),
        ([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}], "images are not fetched"),
        ([{"type": "image", "image": 5}], "needs a picture"),
        ([{"type": "image", "image": b"hello"}], "cannot be read"),
        ([{"type": "image_url", "image_url": "data:image/png,abc"}], "must hold base64"),
        ([noise(1000, 4)], "200 times"),
    ],
)
def test_what_cannot_be_read_is_a_value_error(seeing: Seeing, content: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        seeing.llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)


@pytest.fixture(scope="module")
def sight(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Of an engine with room for 32 patches of a picture."""
    directory = write_vision(tmp_path_factory.mktemp("sight"), "qwen2_vl")
    description = replace(MockEngine(MockOptions()).description, max_image_patches=32, max_image_tokens=8)
    return Pictures(directory, Tokenizer.load(directory), description)


def test_pictures_with_the_same_patches_in_other_places_are_not_taken_for_one(sight: Pictures) -> None:
    """One of a single colour is cut into the same patches lying as standing, and fills as many tokens."""
    lying, standing = (sight.prompt("", [Image.new("RGB", size, "white")]).images[0] for size in ((112, 56), (56, 112)))
    np.testing.assert_array_equal(lying.patches, standing.patches)
    assert lying.length == standing.length and lying.digest != standing.digest


def test_a_picture_larger_than_the_engine_takes_is_made_smaller(sight: Pictures) -> None:
    [image] = sight.prompt("", [noise(640, 480)]).images
    assert 0 < image.shape.patches <= 32


def test_a_model_that_does_not_see_says_so(llm: LLM) -> None:
    with pytest.raises(ValueError, match="this model reads no images"):
        llm.generate({"prompt": "a", "multi_modal_data": {"image": WIDE}}, GREEDY)
