"""The messages of a chat: texts, the calls of tools and their results."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.http.body import StrictModel

MAX_PARTS = 64
MAX_CALLS = 128


class ContentPart(StrictModel):
    type: Annotated[str, Field(max_length=64)]
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "ContentPart":
        if self.type != "text" or self.text is None:
            raise ValueError("only parts of type text are supported, with a text")
        return self


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
            return "\n".join(part.text or "" for part in self.content)
        return self.content or self.refusal or ""

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
