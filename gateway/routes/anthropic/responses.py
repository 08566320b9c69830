"""The answers of the Messages API, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from gateway.http.openapi import OPTIONAL, AnswerModel

EVENTS = "JSON whose `type` is the event's name: `message_start`, `content_block_start`, …; the last is `message_stop`"


class TextBlock(AnswerModel):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(AnswerModel):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(AnswerModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(AnswerModel):
    thinking_tokens: int


class Usage(AnswerModel):
    input_tokens: int = Field(description="without those read from the cache")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens = OPTIONAL


class Message(AnswerModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: Usage


class TokenCount(AnswerModel):
    input_tokens: int
