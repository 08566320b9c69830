"""The answers of the routes below `/v1/responses`, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from gateway.http.openapi import OPTIONAL, AnswerModel
from gateway.routes.openai.responses import CachedTokens, ListedToken, ReasoningTokens, Timings

EVENTS = "JSON, one of OpenAI's events each, whose type the line `event` repeats; the last has the whole response"
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputTokensDetails(CachedTokens):
    cache_write_tokens: int


class ResponseUsage(AnswerModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(AnswerModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ListedToken] = OPTIONAL


class InputText(AnswerModel):
    type: Literal["input_text"]
    text: str


class Refusal(AnswerModel):
    type: Literal["refusal"]
    refusal: str


class ReasoningText(AnswerModel):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ListedItem(AnswerModel):
    id: str
    status: ItemStatus


class InputImage(AnswerModel):
    type: Literal["input_image"]
    image_url: str
    detail: str


class OutputMessage(ListedItem):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText | Refusal]


class InputMessage(ListedItem):
    type: Literal["message"]
    role: Literal["user", "system", "developer"]
    content: list[InputText | InputImage | Refusal]


class FunctionCall(ListedItem):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class FunctionCallOutput(ListedItem):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText | InputImage]


class Reasoning(ListedItem):
    type: Literal["reasoning"]
    summary: list[ReasoningText]
    content: list[ReasoningText]
    encrypted_content: str = OPTIONAL


class ResponseFailure(AnswerModel):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(AnswerModel):
    reason: Literal["max_output_tokens"]


class FunctionTool(AnswerModel):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class Effort(AnswerModel):
    effort: str | None
    summary: None


class TextFormat(AnswerModel):
    format: dict[str, Any]


class ResponseObject(AnswerModel):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | FunctionCall | Reasoning]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Effort
    service_tier: None
    store: bool
    temperature: float
    text: TextFormat
    tool_choice: str | dict[str, Any]
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    metrics: Timings = OPTIONAL


class Deleted(AnswerModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(AnswerModel):
    object: Literal["list"]
    data: list[InputMessage | OutputMessage | FunctionCall | FunctionCallOutput | Reasoning]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(AnswerModel):
    object: Literal["response.input_tokens"]
    input_tokens: int
