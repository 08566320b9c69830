"""The messages of a chat: texts, the calls of tools and their results."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateway.http.body import StrictModel
from gateway.images.picture import Source
from gateway.text.content import Content, image_part, text_part

MAX_PARTS = 64
MAX_CALLS = 128


Detail = Literal["auto", "low", "high", "original"]


class ImageUrl(StrictModel):
    """`detail` low asks for few tokens, where the model has a choice; high and auto for as many as it was made for."""

    url: str
    detail: Detail | None = None


TEXTS = ("text", "input_text", "output_text")  # the latter two are the Responses API's, which vLLM takes in chats too


class ContentPart(StrictModel):
    """A text, a refusal, which is one too, or an image: by its URL, or by an object that has it. `uuid` is vLLM's name
    for an image.
    """

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    uuid: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="after")
    def _is_served(self) -> "ContentPart":
        if self.type == "image_url":
            if self.image_url is None:
                raise ValueError("a part of type image_url needs an image_url: no image is kept by its uuid")
            return self
        if self.type == "refusal":
            self.text = self.refusal
        elif self.type not in TEXTS:
            self.text = None
        if self.text is None:
            known = ", ".join((*TEXTS, "refusal"))
            raise ValueError(f"only parts of types {known}, with their text, and image_url are supported")
        return self

    @property
    def is_image(self) -> bool:
        return self.type == "image_url"

    def source(self, field: str) -> Source:
        """The image of a part that is one, and stands in `field` of the request."""
        given = self.image_url if isinstance(self.image_url, ImageUrl) else ImageUrl(url=self.image_url or "")
        detail = "high" if given.detail == "original" else given.detail or "auto"
        return Source(given.url, f"{field}.image_url", detail)


class CalledFunction(StrictModel):
    """`arguments` is a text, of JSON; some clients send the JSON itself."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(StrictModel):
    """A call of an earlier answer."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Annotated[str, Field(max_length=64)] | None = None
    function: CalledFunction | None = None

    @model_validator(mode="after")
    def _is_of_a_function(self) -> "ToolCall":
        if self.type not in (None, "function") or self.function is None:
            raise ValueError("only calls of type function are supported, with a function")
        return self


class Message(StrictModel):
    """One message of a chat. What cannot be put into the prompt is refused rather than dropped."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    refusal: str | None = None  # what an assistant said instead of content
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its newer name in vLLM
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    function_call: CalledFunction | None = None  # the only call, in OpenAI's older notation
    audio: Any = None
    tools: Any = None  # vLLM's and SGLang's: available from this message on
    task: Any = None  # vLLM's: markers of some models' templates
    prefix: bool | None = None  # SGLang's: the answer goes on where this message ends

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content if not part.is_image)
        return self.content or self.refusal or ""

    @property
    def images(self) -> list[tuple[int, ContentPart]]:
        """The parts that are images, each with its number among all."""
        parts = self.content if isinstance(self.content, list) else []
        return [(at, part) for at, part in enumerate(parts) if part.is_image]

    @property
    def for_template(self) -> Content:
        """Its text; with images, its parts, in which only the place of an image is left."""
        if not isinstance(self.content, list) or not self.images:
            return self.text
        return [image_part() if part.is_image else text_part(part.text or "") for part in self.content]

    @model_validator(mode="after")
    def _is_of_its_role(self) -> "Message":
        for name in ("audio", "tools", "task", "prefix"):
            if getattr(self, name):
                raise ValueError(f"{name} in a message is not supported")
        if self.role != "assistant" and (self.tool_calls or self.function_call):
            called = "tool_calls" if self.tool_calls else "function_call"
            raise ValueError(f"{called} may stand in messages of the assistant only")
        if self.role == "function" and not self.name:
            raise ValueError("a message of the role function needs the function's name")
        if self.content is None and self.role != "assistant":
            raise ValueError("content is required in every message but the assistant's")
        return self


def image_sources(messages: Sequence[Message], field: str = "messages") -> list[Source]:
    """The images of a chat, in the order in which a template writes them."""
    return list(_image_sources(messages, field))


def _image_sources(messages: Sequence[Message], field: str) -> Iterator[Source]:
    for number, message in enumerate(messages):
        for at, part in message.images:
            yield part.source(f"{field}[{number}].content[{at}]")
