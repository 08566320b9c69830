"""Whole prompts: their ids are those of transformers' processors, and nothing a client writes becomes a picture."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from gateway.images.prompt import PromptWriter
from gateway.images.settings import UnusableProcessor
from gateway.text.chat_template import ChatTemplate
from gateway.text.model_files import read_json, special_tokens
from gateway.text.tokenizer import Tokenizer
from tests.gateway.images.models import changed, directory
from tests.gateway.images.reference import Sides, sides
from tests.tiny_vision import IMAGE, SEEN
from tests.vision_references import mark, noise, template

PICTURES = [noise(60, 40), noise(40, 90), noise(120, 30)]
TEXTS = (
    "{0}",
    "{0}{0}",
    "{0}\n{0}\nWhat?",
    "user: {0} the river\n\n{0}\n\n{0}  ends",
    "\n\n\n{0}\n\n\nWhat is in the picture?{0}!",
    "{0}a dog{0}.{0}\n",
    "Ünïcödé \U0001f600{0}\U0001f600",
    " {0} ",
)
MERGES = ("▁▁", "▁W", "▁i", "▁t", "th", "▁r", "▁e", "ri", "en")
CHATS = [name for name in SEEN if template(directory(name)) is not None]


@pytest.mark.parametrize("name", SEEN)
def test_ids_of_a_text_are_transformers(name: str) -> None:
    ours = sides(name)
    for form in TEXTS:
        pictures = PICTURES[: form.count("{0}")]
        plans = [ours.processor.plan(*each.size) for each in pictures]
        text = form.format(mark(name))
        assert ours.writer.encode(text, plans, add_special_tokens=True).ids == ours.ids(text, pictures)


@pytest.mark.parametrize("name", CHATS)
def test_ids_of_a_chat_are_transformers(name: str) -> None:
    ours, target = sides(name), directory(name)
    parts = "tral" not in name  # else an assistant's content is text
    expected = ours.reference.apply_chat_template(
        list(_chat(PICTURES, parts)),
        chat_template=template(target),
        tokenize=True,
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    special = special_tokens(target, read_json(target / "tokenizer_config.json"))
    rendered = ChatTemplate(str(template(target)), special, 1 << 16).render(
        list(_chat([None] * len(PICTURES), parts)), add_generation_prompt=True
    )
    adds = ours.writer.adds_special_tokens(rendered, special.get("bos_token"))
    plans = [ours.processor.plan(*each.size) for each in PICTURES]
    found = ours.writer.encode(rendered, plans, add_special_tokens=adds)
    assert found.ids == expected["input_ids"][0].tolist()


def _chat(pictures: list[Any], parts: bool) -> Iterator[dict[str, Any]]:
    first, second, third = ({"type": "image", **({"image": each} if each else {})} for each in pictures)
    texts = ({"type": "text", "text": text} for text in ("What is in ", "A dog.", "\n\nand these?"))
    what, dog, these = texts
    yield {"role": "user", "content": [first, what]}
    yield {"role": "assistant", "content": [dog] if parts else dog["text"]}
    yield {"role": "user", "content": [second, third, these]}


@pytest.mark.parametrize("name", SEEN)
def test_spans_have_the_rows_of_their_pictures_and_nothing_around_them(name: str) -> None:
    ours = sides(name)
    plans = [ours.processor.plan(*each.size) for each in PICTURES]
    prompt = ours.writer.encode("a{0}b{0}{0}".format(mark(name)), plans, add_special_tokens=True)
    inside = set()
    for plan, span in zip(plans, prompt.spans, strict=True):
        part = prompt.ids[span.offset : span.offset + span.length]
        assert part.count(IMAGE) == plan.rows and part[0] == IMAGE
        assert part[-1] == IMAGE
        inside |= set(range(span.offset, span.offset + span.length))
    assert all(at in inside for at, id in enumerate(prompt.ids) if id == IMAGE)


@pytest.mark.parametrize("name", SEEN)
def test_a_text_without_pictures_is_tokenised_as_it_is(name: str) -> None:
    ours = sides(name)
    text = "user: What is in the picture?"
    expected = Tokenizer.load(directory(name)).encode(text, add_special_tokens=True)
    assert ours.writer.encode(text, [], add_special_tokens=True).ids == expected


@pytest.mark.parametrize("name", SEEN)
def test_a_placeholder_in_a_text_of_a_request_is_told(name: str) -> None:
    writer = sides(name).writer
    row = Tokenizer.load(directory(name)).piece(IMAGE)
    for spelled in {row, writer.placeholder}:
        assert writer.refused(f"look: {spelled}!") == spelled
    assert writer.refused("< image > is how a picture is marked, or [I MG]") is None


@pytest.mark.parametrize("name", SEEN)
def test_as_many_pictures_as_placeholders(name: str) -> None:
    ours = sides(name)
    plan = ours.processor.plan(50, 50)
    for places, pictures in ((0, 1), (1, 0), (1, 2), (3, 2)):
        with pytest.raises(ValueError, match=f"{places} places for images, and there are {pictures} images"):
            ours.writer.encode("a" + mark(name) * places, [plan] * pictures, add_special_tokens=True)


def test_a_row_that_another_spelling_becomes_is_refused() -> None:
    """As a normaliser that folds wide characters makes of ＜image＞."""
    backend = _spm(normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")]), normalized=True)
    writer = PromptWriter(sides("llava").processor, backend)
    plan = sides("llava").processor.plan(50, 50)
    with pytest.raises(ValueError, match="must not spell the placeholder"):
        writer.encode("＜image＞ or <image>", [plan], add_special_tokens=True)  # noqa: RUF001


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("lstrip", [False, True])
@pytest.mark.parametrize("scheme", ["prepend", "first", "always", "never"])
def test_a_run_is_tokenised_as_its_one_token_whatever_the_tokenizer_puts_in_front(
    scheme: str, lstrip: bool, normalized: bool
) -> None:
    if normalized and scheme == "prepend":
        return  # such a token is found at the beginning of a text alone: transformers has no prompts either
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = _spm(
        prepend if scheme == "prepend" else None,
        None if scheme == "prepend" else scheme,
        lstrip=lstrip,
        rstrip=not lstrip,
        normalized=normalized,
    )
    processor = sides("llava_next").processor
    writer = PromptWriter(processor, tokenizer)
    for form in TEXTS:
        plans = [processor.plan(*each.size) for each in PICTURES[: form.count("{0}")]]
        runs = iter(["<image>" * plan.rows for plan in plans])
        pieces = form.split("{0}")
        whole = pieces[0] + "".join(next(runs) + piece for piece in pieces[1:])
        expected = tokenizer.encode(whole, add_special_tokens=True)
        assert writer.encode(form.format("<image>"), plans, add_special_tokens=True).ids == expected


def _spm(normalizer: Any, scheme: str | None = None, **properties: bool) -> Tokenizer:
    """A BPE over `▁` as sentencepiece has it, with a token for pictures of these properties."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *MERGES]
    pieces += [*"abcdefghijklmnopqrstuvwxyzUW!?.:"[: IMAGE - len(pieces)]]
    merges = [(merge[:-1], merge[-1]) for merge in MERGES]
    model = models.BPE(vocab={piece: id for id, piece in enumerate(pieces)}, merges=merges, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    if scheme:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if normalizer:
        backend.normalizer = normalizer
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.decoder = decoders.ByteFallback()
    backend.add_special_tokens([AddedToken("<image>", special=True, **properties)])
    assert backend.token_to_id("<image>") == IMAGE
    return Tokenizer(backend)


def test_a_tokenizer_without_the_token_of_pictures_is_refused(tmp_path: Path) -> None:
    target = changed("llava", tmp_path, {"config.json": {"image_token_index": 7, "image_token_id": 7}})
    with pytest.raises(UnusableProcessor, match="id 7, of images in config"):
        Sides.of(target, "llava")


def test_a_prompt_is_data() -> None:
    ours = sides("mistral3")
    plan = ours.processor.plan(100, 60)
    written = ours.writer.write("[IMG]", [plan], add_special_tokens=True)
    assert written.text.count("[IMG]") == len(plan.runs) == written.text.count("[IMG_BREAK]") + 1
    assert json.dumps(written.prompt([IMAGE] * len(plan.runs)).ids)
