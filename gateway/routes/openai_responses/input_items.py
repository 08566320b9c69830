"""The items of `input`: messages, the calls of functions and their results, reasoning, and references to stored items.

Each is read strictly and then written as OpenAI lists it (`told`): with an id, a status, and its content as parts. That
is what is stored, and what `conversation.py` makes messages of. Kinds that cannot be put into a prompt are refused.
"""

import base64
import binascii
import re
import secrets
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from gateway.http.body import StrictModel
from gateway.routes.openai.messages import Detail

MAX_ITEMS = 4096
MAX_PARTS = 64
KIND = re.compile(r"[a-z_]{1,40}")  # what a refusal repeats of a type
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
IMAGE = "input_image"
SEALED = "text:"  # begins our own `encrypted_content`, which hides nothing

Item = dict[str, Any]


def new_id(prefix: str) -> str:
    """An id that nobody can guess, as OpenAI's."""
    return f"{prefix}_{secrets.token_hex(24)}"


def sealed(reasoning: str) -> str:
    """`reasoning` as `encrypted_content`: clients that keep no other part of it send it back so."""
    return SEALED + base64.b64encode(reasoning.encode()).decode()


def opened(encrypted: str) -> str:
    """The inverse of `sealed`. Raises ValueError if the text is not of this server."""
    try:
        if encrypted.startswith(SEALED):
            return base64.b64decode(encrypted.removeprefix(SEALED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise ValueError("encrypted_content is not of this server, and there is no other content")


class Part(StrictModel):
    """A text, a refusal, or an image, whose `detail` is as in chats."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: Annotated[str, Field(max_length=128)] | None = None
    detail: Detail | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "Part":
        if self.type == "refusal" and self.refusal is not None:
            return self
        if self.is_image:
            return self._located()
        if self.type not in TEXTS:
            raise ValueError(f"parts{_of_type(self.type)} are not supported, only texts and images are")
        if self.text is None:
            raise ValueError("a part needs its text")
        return self

    def _located(self) -> "Part":
        if self.file_id is not None:
            raise ValueError("file_id is not supported: an image comes by its image_url")
        if self.image_url is None:
            raise ValueError(f"a part of type {IMAGE} needs its image_url")
        return self

    @property
    def is_image(self) -> bool:
        return self.type == IMAGE

    def told(self) -> Item:
        """As OpenAI lists what is put in."""
        if self.is_image:
            return {"type": IMAGE, "image_url": self.image_url, "detail": self.detail or "auto"}
        return {"type": "input_text", "text": self.words}

    @property
    def words(self) -> str:
        return self.refusal if self.type == "refusal" and self.refusal is not None else self.text or ""


Parts = Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
Id = Annotated[str, Field(min_length=1, max_length=128)]
Status = Literal["in_progress", "completed", "incomplete"]


def _refuse_images(parts: str | Parts | None) -> None:
    if isinstance(parts, list) and any(part.is_image for part in parts):
        raise ValueError(f"parts of type {IMAGE} may stand in the input of users and the results of functions only")


class MessageItem(StrictModel):
    """A message, with or without its type, or an earlier answer's."""

    type: Literal["message"] | None = None
    id: Id | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    status: Status | None = None

    @model_validator(mode="after")
    def _holds_what_its_role_writes(self) -> "MessageItem":
        if self.role == "assistant":
            _refuse_images(self.content)
        return self

    def told(self) -> Item:
        parts = [Part(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        content = [self._told(part) for part in parts]
        fields = {"type": "message", "role": self.role, "content": content, "status": self.status or "completed"}
        return {"id": self.id or new_id("msg"), **fields}

    def _told(self, part: Part) -> Item:
        if part.type == "refusal":
            return {"type": "refusal", "refusal": part.words}
        if self.role == "assistant":
            return {"type": "output_text", "text": part.words, "annotations": []}
        return part.told()


class CallItem(StrictModel):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    id: Id | None = None
    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    status: Status | None = None

    def told(self) -> Item:
        fields = {"type": "function_call", "call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return {"id": self.id or new_id("fc"), **fields, "status": self.status or "completed"}


class ResultItem(StrictModel):
    """What a function returned."""

    type: Literal["function_call_output"]
    id: Id | None = None
    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    output: str | Parts
    status: Status | None = None

    def told(self) -> Item:
        output = self.output if isinstance(self.output, str) else [part.told() for part in self.output]
        fields = {"type": "function_call_output", "call_id": self.call_id, "output": output}
        return {"id": self.id or new_id("fco"), **fields, "status": self.status or "completed"}


class ReasoningItem(StrictModel):
    """Reasoning of an earlier answer: its content, or else its summary, or else what was sealed here."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: Parts | None = None
    content: Parts | None = None
    encrypted_content: str | None = None
    status: Status | None = None

    @model_validator(mode="after")
    def _can_be_read(self) -> "ReasoningItem":
        _refuse_images(self.content)
        _refuse_images(self.summary)
        if not self.content and not self.summary and self.encrypted_content:
            self.content = [Part(type="reasoning_text", text=opened(self.encrypted_content))]
        return self

    def told(self) -> Item:
        content = [{"type": "reasoning_text", "text": part.words} for part in self.content or ()]
        summary = [{"type": "summary_text", "text": part.words} for part in self.summary or ()]
        fields = {"type": "reasoning", "summary": summary, "content": content}
        return {"id": self.id or new_id("rs"), **fields, "status": self.status or "completed"}


class ReferenceItem(StrictModel):
    """An item that is stored, by its id."""

    type: Literal["item_reference"] | None = None
    id: Id


class OtherItem(StrictModel):
    """Whatever else OpenAI knows."""

    type: Any = None

    @model_validator(mode="after")
    def _is_refused(self) -> "OtherItem":
        raise ValueError(f"items{_of_type(self.type)} are not supported")


def _of_type(type: Any) -> str:
    return f" of type {type}" if isinstance(type, str) and KIND.fullmatch(type) else " of this type"


_TAGS = {
    "message": "a message",
    "function_call": "a call",
    "function_call_output": "a result",
    "reasoning": "a reasoning",
    "item_reference": "a reference",
}


def _tag(item: Any) -> str:
    """Which model reads `item`: tags are no identifiers, so that no refusal shows them as fields."""
    if isinstance(item, InputModel):
        return _TAGS[item.type or ("message" if isinstance(item, MessageItem) else "item_reference")]
    if not isinstance(item, dict):
        return "another item"
    type = item.get("type")
    if type is None:
        type = "message" if "role" in item else "item_reference" if "id" in item else None
    return _TAGS.get(type, "another item") if isinstance(type, str) else "another item"


InputModel = MessageItem | CallItem | ResultItem | ReasoningItem | ReferenceItem
InputItem = Annotated[
    Annotated[MessageItem, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[ResultItem, Tag("a result")]
    | Annotated[ReasoningItem, Tag("a reasoning")]
    | Annotated[ReferenceItem, Tag("a reference")]
    | Annotated[OtherItem, Tag("another item")],
    Discriminator(_tag),
]
InputItems = Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)]
