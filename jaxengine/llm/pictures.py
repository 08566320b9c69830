"""Pictures for `LLM`, by the code of the server. They are decoded in this process: they are the caller's own."""

import base64
import binascii
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gateway.images.plan import PicturePlan
from gateway.images.processor import ImageProcessor
from gateway.images.prompt import PromptWriter
from gateway.images.room import Room
from gateway.text.content import Content, Part, image_part, text_part
from gateway.text.model_files import read_json, special_tokens
from gateway.text.tokenizer import Tokenizer
from jaxengine.llm.chat import Chat
from jaxengine.llm.loop import Prompted
from jaxengine.request import image as request_image
from jaxengine.request.interface import Description

BLIND = "this model reads no images"
TYPES = ("image", "image_pil", "image_url", "input_image")  # of parts that are pictures, as several APIs call them
Given = Image.Image | bytes | str | Path  # a picture, its file, the file's path, or a `data:` URL


class Pictures:
    """How the model in `directory` sees.

    Raises:
        ValueError: its processor is not served.
    """

    def __init__(self, directory: Path, tokenizer: Tokenizer, description: Description) -> None:
        self._processor = ImageProcessor.open(directory, Room.of(description))
        self._processor.load()
        self._writer = PromptWriter(self._processor, tokenizer)
        self._bos = special_tokens(directory, read_json(directory / "tokenizer_config.json")).get("bos_token")

    def check_text(self, text: str) -> None:
        """Raises ValueError if `text` spells what stands for a picture."""
        if (spelled := self._writer.refused(text)) is not None:
            raise ValueError(f"a text must not spell {spelled}, which stands for an image")

    def chat_prompt(self, text: str, pictures: Sequence[Image.Image]) -> Prompted:
        """The prompt of a `text` that a chat template has written. Raises ValueError: see `prompt`."""
        return self.prompt(text, pictures, special=self._writer.adds_special_tokens(text, self._bos))

    def prompt(self, text: str, pictures: Sequence[Image.Image], *, special: bool = True) -> Prompted:
        """The prompt of `text`, in which a placeholder stands for each picture; if none does, they stand in front.

        Raises:
            ValueError: there are more or fewer placeholders than pictures, or a picture cannot be read.
        """
        if pictures and self._writer.refused(text) is None:
            text = self._writer.inline * len(pictures) + text
        plans = [self._processor.plan(*_upright_size(each)) for each in pictures]
        made = self._writer.encode(text, plans, add_special_tokens=special)
        images = [
            self._image(picture, plan, span.offset, span.length)
            for picture, plan, span in zip(pictures, plans, made.spans, strict=True)
        ]
        return Prompted(made.ids, text, tuple(images))

    def _image(self, picture: Image.Image, plan: PicturePlan, offset: int, length: int) -> request_image.Image:
        patches = self._processor.patches(picture, plan).astype(np.float32)
        digest = hashlib.sha256(self._processor.fingerprint + repr(plan.shape).encode())
        digest.update(np.ascontiguousarray(patches).tobytes())
        return request_image.Image(digest.digest(), offset, length, plan.shape, patches)


def _upright_size(picture: Image.Image) -> tuple[int, int]:
    width, height = picture.size
    lies = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # EXIF's orientation
    return (height, width) if lies else (width, height)


def without_pictures(chat: Chat, sight: Pictures | None) -> tuple[Chat, list[Image.Image]]:
    """`chat` with the places of its pictures alone, and the pictures. Raises ValueError: `sight` cannot see them."""
    read = [content_of(message.get("content")) for message in chat]
    pictures = [each for _, found in read for each in found]
    if sight is not None:
        sight.check_text(json.dumps([content for content, _ in read], ensure_ascii=False))
    elif pictures:
        raise ValueError(BLIND)
    told = (
        {**message, "content": content} if "content" in message else message
        for message, (content, _) in zip(chat, read, strict=True)
    )
    return [*told], pictures


def vllm_prompt(prompt: Mapping[str, Any], sight: Pictures | None) -> tuple[Any, list[Image.Image]]:
    """The text, or ids, of a prompt in vLLM's words, and its pictures. Raises ValueError: `sight` cannot see them."""
    given = (prompt.get("multi_modal_data") or {}).get("image")
    if given is None:
        return prompt.get("prompt", prompt.get("prompt_token_ids")), []
    if sight is None:
        raise ValueError(BLIND)
    if not isinstance(text := prompt.get("prompt"), str):
        raise ValueError("a prompt with images needs its text in 'prompt'")
    return text, [*map(opened, given if isinstance(given, list | tuple) else [given])]


def content_of(content: Any) -> tuple[Content, list[Image.Image]]:
    """The content of a message for its template, and its pictures. Raises ValueError."""
    if not isinstance(content, list | tuple):
        return content, []
    parts: list[Part] = []
    pictures: list[Image.Image] = []
    for each in content:
        if (given := _picture_in(each)) is not None:
            pictures.append(opened(given))
            parts.append(image_part())
        else:
            parts.append(text_part(each) if isinstance(each, str) else dict(each))
    return parts, pictures


def _picture_in(part: Any) -> Given | None:
    """What a part of a message has as a picture; None if it is another part."""
    if isinstance(part, Image.Image):
        return part
    if not isinstance(part, Mapping) or part.get("type") not in TYPES:
        return None
    found = next((part[name] for name in (*TYPES, "url", "path") if part.get(name) is not None), None)
    given = found.get("url") if isinstance(found, Mapping) else found
    if not isinstance(given, Image.Image | bytes | str | Path):
        raise ValueError(f"a part of type {part['type']} needs a picture: Pillow's, a file, its path, or a data: URL")
    return given


def opened(given: Given) -> Image.Image:
    """Raises ValueError: it is no picture, or is not here."""
    if isinstance(given, Image.Image):
        return given
    if isinstance(given, str) and given[:5].lower() == "data:":
        given = _embedded(given)
    if isinstance(given, str) and "://" in given:
        raise ValueError("images are not fetched: open them with Pillow")
    try:
        return Image.open(io.BytesIO(given) if isinstance(given, bytes) else given)
    except OSError as error:
        raise ValueError(f"an image cannot be read: {error}") from error


def _embedded(url: str) -> bytes:
    head, _, payload = url.partition(",")
    try:
        if head.endswith(";base64"):
            return base64.b64decode(payload, validate=True)
    except binascii.Error:
        pass
    raise ValueError("a data: URL must hold base64, as data:image/png;base64,…")
