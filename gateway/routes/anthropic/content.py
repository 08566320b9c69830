"""The messages of a body and their blocks. What cannot be put into the prompt is refused by name."""

import re
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
    "tool_use": (("assistant",), ("id", "name", "input")),
    "tool_result": (("user",), ("tool_use_id",)),
    "thinking": (("assistant",), ("thinking",)),
    "redacted_thinking": (("assistant",), ()),  # dropped: only Anthropic's models can read it
}


def named(type: str) -> str:
    """`type` for a message, if it looks like the name of one."""
    return f"type {type}" if TYPE_NAME.fullmatch(type) else "that type"


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


Text = str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]


class Block(StrictModel):
    """A block of any type that is served."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_CALL_NAME)] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    content: Text | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    @model_validator(mode="after")
    def _is_served(self) -> "Block":
        if self.type not in BLOCKS:
            raise ValueError(f"blocks of {named(self.type)} are not supported")
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


def joined(text: Text | None) -> str:
    """The text of a string or of blocks, a line each at least."""
    return "\n".join(block.text or "" for block in text) if isinstance(text, list) else text or ""
