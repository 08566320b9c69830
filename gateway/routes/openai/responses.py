"""The answers of the routes of `/v1` and of vLLM's helper routes, for the OpenAPI document."""

from typing import Literal

from pydantic import Field

from gateway.http.openapi import OPTIONAL, OPTIONAL_LIST, AnswerModel

CHAT_EVENTS = "JSON, a `chat.completion.chunk` each; the last is `[DONE]`"
TEXT_EVENTS = "JSON, a `text_completion` chunk each; the last is `[DONE]`"


class CachedTokens(AnswerModel):
    cached_tokens: int


class ReasoningTokens(AnswerModel):
    reasoning_tokens: int


class Usage(AnswerModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens = OPTIONAL


class Ranked(AnswerModel):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, Ranked] | None]


class Alternative(AnswerModel):
    token: str
    logprob: float
    bytes: list[int]


class ListedToken(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(AnswerModel):
    content: list[ListedToken]
    refusal: None


class TextLogprobs(AnswerModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(AnswerModel):
    index: int
    stop_reason: str | int | None
    token_ids: list[int] | None


class CalledFunction(AnswerModel):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class AnsweredCall(AnswerModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(AnswerModel):
    role: Literal["assistant"]
    content: str | None = Field(description="null if there are calls alone")
    refusal: None
    reasoning: str | None
    reasoning_content: str | None = OPTIONAL
    tool_calls: list[AnsweredCall] = OPTIONAL_LIST
    function_call: CalledFunction = OPTIONAL


class ChatChoice(Choice):
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    message: AnswerMessage
    logprobs: ChatLogprobs | None


class TextChoice(Choice):
    finish_reason: Literal["stop", "length"]
    text: str
    logprobs: TextLogprobs | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None


class Timings(AnswerModel):
    time_to_first_token_ms: float
    generation_time_ms: float
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


class Answer(AnswerModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    service_tier: None
    kv_transfer_params: None
    metrics: Timings | None = Field(description="null without --enable-per-request-metrics")


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None


class Completion(Answer):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class Embedding(AnswerModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="a text is base64 of float32, little-endian")


class EmbeddedTokens(AnswerModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class Embeddings(AnswerModel):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddedTokens


class Permission(AnswerModel):
    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: None
    is_blocking: bool


class Card(AnswerModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[Permission]
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int


class Cards(AnswerModel):
    object: Literal["list"]
    data: list[Card]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Tokens(AnswerModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(AnswerModel):
    prompt: str


TokenizerInfo = dict[str, str | None]


class Version(AnswerModel):
    version: str


class Load(AnswerModel):
    server_load: int = Field(ge=0)
