"""What `/v1` accepts, field by field. `null` means absent everywhere.

Ranges that need no tokens are checked here, so that every refusal names its field. Fields we know but do not serve
are in `unsupported.py`; fields we do not know are ignored, as OpenAI's clients grow faster than servers.
"""

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from gateway.body import StrictModel
from gateway.errors import RequestError
from gateway.openai.identity import SAFE_ID
from gateway.openai.unsupported import refuse_unsupported
from gateway.template import RESERVED

MAX_CHOICES = 8
MAX_MESSAGES = 1024
MAX_PARTS = 64
MAX_STOP_CHARACTERS = 256
MAX_STOP_IDS = 64
MAX_BIASES = 300
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 64
MAX_ALLOWED_IDS = 300
MAX_BIAS = 100
MAX_LOGPROBS = 20
MAX_TEMPLATE_VARIABLES = 32
MAX_TEMPLATE_CHARACTERS = 16_384
MAX_DOCUMENTS = 64
MAX_DOCUMENT_CHARACTERS = 262_144

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_LISTS_OF_IDS = {"type": "array", "minItems": 1, "items": _IDS}
Prompts = Annotated[list[str | list[int]], WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, _LISTS_OF_IDS]})]


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(StrictModel):
    """Fields of both generating routes."""

    model_config = ConfigDict(extra="allow")  # so that unsupported fields can be told from absent ones

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=100)] | None = None
    logit_bias: dict[str, Any] | None = Field(None, max_length=MAX_BIASES)
    allowed_token_ids: list[Count] | None = Field(None, min_length=1, max_length=MAX_ALLOWED_IDS)
    bad_words: list[BadWord] | None = Field(None, max_length=MAX_BAD_WORDS)
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | list[StopText] | None = None
    stop_token_ids: list[Count] | None = Field(None, max_length=MAX_STOP_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # no effect: no tokenizer read here puts any
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    priority: Int32 | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def sequences(self) -> int:
        """How many are generated; a completion may choose the best of more than it answers."""
        return self.choices

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @field_validator("logit_bias")
    @classmethod
    def _biases_tokens(cls, biases: dict[str, Any] | None) -> dict[str, float] | None:
        for key, bias in (biases or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10):
                raise ValueError("every key must be a token id in digits")
            if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
                raise ValueError(f"the bias of token {key} must be a number in {-MAX_BIAS}..{MAX_BIAS}")
        return biases

    @field_validator("request_id")
    @classmethod
    def _is_safe_to_repeat(cls, value: str | None) -> str | None:
        if value is not None and not SAFE_ID.fullmatch(value):
            raise ValueError("must be 1 to 64 letters, digits, dots, underscores or hyphens")
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_something(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be at least 1, or -1 for as many as fit")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> "Common":
        if self.stream_options is not None and not self.stream:
            raise RequestError.invalid("stream_options is only allowed when stream is true", "stream_options")
        if self.prompt_logprobs and self.stream:
            raise RequestError.invalid("prompt_logprobs is not supported when streaming", "prompt_logprobs")
        if self.bad_words and self.allowed_token_ids is not None:
            raise RequestError.invalid("bad_words and allowed_token_ids exclude each other", "bad_words")
        refuse_unsupported(self.model_extra or {})
        return self


class CompletionRequest(Common):
    """Body of `/v1/completions`. `prompts` is the `prompt` field as a list, text or token ids each."""

    prompts: Prompts = Field(alias="prompt")
    max_tokens: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @field_validator("prompts", mode="plain")
    @classmethod
    def _one_or_many(cls, value: Any) -> list[str | list[int]]:
        prompts = [value] if isinstance(value, str) or _is_ids(value) else value
        if not isinstance(prompts, list) or not prompts:
            raise ValueError("must be a text, a list of texts, a list of token ids or a list of such lists, not empty")
        if not all(isinstance(each, str) for each in prompts) and not all(_is_ids(each) for each in prompts):
            raise ValueError("must hold either texts or lists of token ids, none of them empty")
        return prompts

    @property
    def silent(self) -> bool:
        """Whether only the echo is wanted, nothing generated."""
        return self.max_tokens == 0

    @property
    def sequences(self) -> int:
        return self.best_of or self.choices

    @model_validator(mode="after")
    def _chooses_among_enough(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of < self.choices:
            raise RequestError.invalid(f"best_of must be at least n = {self.choices} (given {self.best_of})", "best_of")
        if self.sequences > self.choices and self.stream:
            raise RequestError.invalid("best_of above n is not supported when streaming", "best_of")
        return self

    @model_validator(mode="after")
    def _asks_for_something(self) -> "CompletionRequest":
        if self.silent and not self.echo:
            raise RequestError.invalid("max_tokens must be at least 1 unless echo is true (given 0)", "max_tokens")
        return self


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


class ContentPart(StrictModel):
    type: Annotated[str, Field(max_length=64)]
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "ContentPart":
        if self.type != "text" or self.text is None:
            raise ValueError("only parts of type text are supported, with a text")
        return self


class Message(StrictModel):
    """One message of a chat. `tool_calls` in it are refused rather than dropped from the prompt."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its newer name in vLLM
    tool_calls: Any = None
    function_call: Any = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _has_text_only(self) -> "Message":
        if self.tool_calls or self.function_call:
            raise ValueError("tool_calls in messages are not supported")
        if self.content is None and self.role != "assistant":
            raise ValueError("content is required in every message but the assistant's")
        return self

    def fields(self, role: str) -> dict[str, str]:
        """As the template sees it."""
        reasoning = self.reasoning_content or self.reasoning
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        optional |= {"reasoning_content": reasoning, "reasoning": reasoning}  # templates know the one or the other
        return {"role": role, "content": self.text, **{key: value for key, value in optional.items() if value}}


class ChatRequest(Common):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    echo: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)] | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    reasoning_effort: Annotated[str, Field(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def echoed(self) -> str:
        """The text that the answer repeats in front: of a final message which is the assistant's too."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    @property
    def template_variables(self) -> dict[str, Any]:
        named = {"reasoning_effort": self.reasoning_effort, "documents": self.documents or None}
        given = {name: value for name, value in named.items() if value is not None}
        return given | (self.chat_template_kwargs or {})

    @field_validator("documents")
    @classmethod
    def _are_bounded(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        if len(json.dumps(value)) > MAX_DOCUMENT_CHARACTERS:
            raise ValueError(f"must be at most {MAX_DOCUMENT_CHARACTERS} characters of JSON")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_variables(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in value or ():
            if name in RESERVED or name.endswith("_token") or not name.isidentifier() or len(name) > 64:
                raise ValueError("holds a name that is not free for variables of the template")
        if len(json.dumps(value)) > MAX_TEMPLATE_CHARACTERS:
            raise ValueError(f"must be at most {MAX_TEMPLATE_CHARACTERS} characters of JSON")
        return value

    @model_validator(mode="after")
    def _is_a_chat(self) -> "ChatRequest":
        if self.add_generation_prompt and self.continue_final_message:
            message = "add_generation_prompt and continue_final_message exclude each other"
            raise RequestError.invalid(message, "continue_final_message")
        if self.continue_final_message and not self.messages[-1].text:
            message = "continue_final_message needs a final message with content"
            raise RequestError.invalid(message, "continue_final_message")
        if self.top_logprobs and not self.logprobs:
            raise RequestError.invalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        return self
