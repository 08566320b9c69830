"""The messages of a chat: text only, for now."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.http.body import StrictModel

MAX_PARTS = 64


class ContentPart(StrictModel):
    type: Annotated[str, Field(max_length=64)]
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "ContentPart":
        if self.type != "text" or self.text is None:
            raise ValueError("only parts of type text are supported, with a text")
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
    tool_calls: Any = None
    function_call: Any = None
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
    def _has_text_only(self) -> "Message":
        for name in ("tool_calls", "function_call", "audio", "tools", "task", "prefix"):
            if getattr(self, name):
                raise ValueError(f"{name} in a message is not supported")
        if self.content is None and self.role != "assistant":
            raise ValueError("content is required in every message but the assistant's")
        return self

    def fields(self, role: str) -> dict[str, str]:
        """The message as the chat template sees it."""
        reasoning = self.reasoning_content or self.reasoning
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        optional |= {"reasoning_content": reasoning, "reasoning": reasoning}  # templates know the one or the other
        return {"role": role, "content": self.text, **{key: value for key, value in optional.items() if value}}
