"""The messages of a body and their blocks. What cannot be put into the prompt is refused by name."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateway.http.body import StrictModel

MAX_BLOCKS = 256
MAX_CALL_NAME = 256
TYPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")  # a client's word that a refusal may repeat

Role = Literal["user", "assistant", "system"]
# The blocks that are served: who may write each, and the fields that it needs.
BLOCKS: dict[str, tuple[tuple[Role, ...], tuple[str, ...]]] = {
    "text": (("user", "assistant", "system"), ("text",)),
    "image": (("user",), ("source",)),
    "tool_use": (("assistant",), ("id", "name", "input")),
    "tool_result": (("user",), ("tool_use_id",)),
    "thinking": (("assistant",), ("thinking",)),
    "redacted_thinking": (("assistant",), ()),  # dropped: only Anthropic's models can read it
}


def named(type: str) -> str:
    """`type` for a message, if it looks like the name of one."""
    return f"type {type}" if TYPE_NAME.fullmatch(type) else "that type"


def _read_by_type(block: Any, served: Collection[str], refusal: str) -> Any:
    """`block` if its type is `served`. Told before its fields are read: they are of another kind in other types."""
    type = block.get("type") if isinstance(block, dict) else None
    if isinstance(type, str) and type not in served:
        raise ValueError(f"blocks of {named(type)} are not supported{refusal}")
    return block


class TextBlock(StrictModel):
    type: Annotated[str, Field(max_length=64)]
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "TextBlock":
        if self.type != "text":
            raise ValueError(f"blocks of {named(self.type)} are not supported here, only text")
        if self.text is None:
            raise ValueError("a block of type text needs text")
        return self


class ImageSource(StrictModel):
    """An image within the body, or at a URL. A file that Anthropic keeps is refused."""

    type: Annotated[str, Field(max_length=64)]
    media_type: Annotated[str, Field(max_length=64)] | None = None
    data: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _is_served(self) -> "ImageSource":
        if self.type not in ("base64", "url"):
            raise ValueError(f"sources of {named(self.type)} are not supported, only base64 and url")
        if self.type == "base64" and (self.data is None or self.media_type is None):
            raise ValueError("a source of type base64 needs media_type and data")
        if self.type == "url" and self.url is None:
            raise ValueError("a source of type url needs url")
        return self

    @property
    def locator(self) -> str:
        return f"data:{self.media_type};base64,{self.data}" if self.type == "base64" else self.url or ""


class Transformations(StrictModel):
    """What happens to an image that is too large: only what always does."""

    oversized_image: Literal["downsize"] | None = None


class ResultBlock(StrictModel):
    """What a tool has returned: a text or an image."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    source: ImageSource | None = None
    transformations: Transformations | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_served(cls, block: Any) -> Any:
        return _read_by_type(block, ("text", "image"), " here, only text and image")

    @model_validator(mode="after")
    def _is_whole(self) -> "ResultBlock":
        if (self.text if self.type == "text" else self.source) is None:
            raise ValueError(f"a block of type {self.type} needs {'text' if self.type == 'text' else 'source'}")
        return self


Text = str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]


class Block(StrictModel):
    """A block of any type that is served."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_CALL_NAME)] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    source: ImageSource | None = None
    transformations: Transformations | None = None
    content: str | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_served(cls, block: Any) -> Any:
        return _read_by_type(block, BLOCKS, "")

    @model_validator(mode="after")
    def _is_whole(self) -> "Block":
        for field in BLOCKS[self.type][1]:
            if getattr(self, field) is None:
                raise ValueError(f"a block of type {self.type} needs {field}")
        return self


class Message(StrictModel):
    role: Role
    content: str | Annotated[list[Block], Field(max_length=MAX_BLOCKS, fail_fast=True)]

    @property
    def blocks(self) -> list[Block]:
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    def of(self, type: str) -> list[Block]:
        return [block for block in self.blocks if block.type == type]

    @property
    def text(self) -> str:
        """Its own; not that of the results in it."""
        return "\n".join(block.text or "" for block in self.of("text"))

    @model_validator(mode="after")
    def _holds_what_its_role_writes(self) -> "Message":
        for block in () if isinstance(self.content, str) else self.content:
            if self.role not in BLOCKS[block.type][0]:
                raise ValueError(f"a message of the role {self.role} may hold no block of type {block.type}")
        return self


Part = dict[str, Any]


def chat_content(blocks: Sequence[Block] | Sequence[ResultBlock]) -> str | list[Part]:
    """Texts, a line each at least; with images among them, the parts of a chat's message."""
    if not any(block.type == "image" for block in blocks):
        return "\n".join(block.text or "" for block in blocks)
    return [_part(block) for block in blocks]


def _part(block: Block | ResultBlock) -> Part:
    if block.source is not None:
        return {"type": "image_url", "image_url": {"url": block.source.locator}}
    return {"type": "text", "text": block.text or ""}
