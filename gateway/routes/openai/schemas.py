"""The bodies of `/v1/completions`, `/v1/chat/completions` and its batch route, beyond their fields in `common.py`."""

import json
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, WithJsonSchema, field_validator, model_validator

from gateway.errors import RequestError
from gateway.routes.openai.beam_search import not_with_beams
from gateway.routes.openai.common import MAX_CHOICES, Alternatives, Common, Count
from gateway.routes.openai.messages import Message
from gateway.routes.openai.reasoning_options import Budget, ReasoningOptions
from gateway.routes.openai.tool_choice import NO_TOOLS, ToolUse, tool_use
from gateway.routes.openai.tools import MAX_TOOLS, Function, ToolDefinition, check_functions
from gateway.text.chat_template import RESERVED

MAX_MESSAGES = 1024
MAX_TEMPLATE_VARIABLES = 32
MAX_TEMPLATE_CHARACTERS = 16_384
MAX_DOCUMENTS = 64
MAX_DOCUMENT_CHARACTERS = 262_144

_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_LISTS_OF_IDS = {"type": "array", "minItems": 1, "items": _IDS}
Prompts = Annotated[list[str | list[int]], WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, _LISTS_OF_IDS]})]


def one_or_many(value: Any) -> list[str | list[int]]:
    """A prompt or a list of prompts, as a list. Raises ValueError."""
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("must be a text, a list of texts, a list of token ids or a list of such lists, not empty")
    if not all(isinstance(each, str) for each in prompts) and not all(_is_ids(each) for each in prompts):
        raise ValueError("must hold either texts or lists of token ids, none of them empty")
    return prompts


class CompletionRequest(Common):
    """Body of `/v1/completions`. `prompts` is the field `prompt` as a list; each entry is a text or a list of ids."""

    prompts: Prompts = Field(alias="prompt")
    max_tokens: Count | None = None
    echo: bool | None = None
    logprobs: Alternatives | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @field_validator("prompts", mode="plain")
    @classmethod
    def _one_or_many(cls, value: Any) -> list[str | list[int]]:
        return one_or_many(value)

    @property
    def lists_logprobs(self) -> bool:
        return self.logprobs is not None or super().lists_logprobs

    @property
    def alternatives(self) -> dict[str, int]:
        return {**super().alternatives, "logprobs": self.logprobs or 0}

    @property
    def echo_only(self) -> bool:
        """Whether the prompt is to be echoed and nothing generated."""
        return self.max_tokens == 0

    @property
    def sequences(self) -> int:
        return self.best_of or self.choices

    @property
    def sequences_field(self) -> str:
        return "n" if self.best_of is None else "best_of"

    @model_validator(mode="after")
    def _chooses_among_enough(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of < self.choices:
            raise RequestError.invalid(f"best_of must be at least n = {self.choices} (given {self.best_of})", "best_of")
        if self.sequences > self.choices and self.stream:
            raise RequestError.invalid("best_of above n is not supported when streaming", "best_of")
        return self

    @model_validator(mode="after")
    def _echoes_what_is_known(self) -> "CompletionRequest":
        if self.use_beam_search and self.echo and self.logprobs is not None:
            raise not_with_beams("echo of a prompt with its logprobs", "echo")
        return self

    @model_validator(mode="after")
    def _asks_for_something(self) -> "CompletionRequest":
        if self.echo_only and not self.echo:
            raise RequestError.invalid("max_tokens must be at least 1 unless echo is true (given 0)", "max_tokens")
        return self


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


_CHOICE = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}
Choice = Annotated[Any, WithJsonSchema(_CHOICE)]  # read by `tool_choice.py`

SWITCHES = ("enable_thinking", "thinking")  # of reasoning; a chat template knows one of the names, if any
BUDGETS = ("thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens")
Conversation = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatFields(Common):
    """The fields of a chat besides its messages."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    echo: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)] | None = None
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    reasoning_effort: Annotated[str, Field(max_length=16)] | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)
    tools: list[ToolDefinition] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = Field(None, max_length=MAX_TOOLS)
    function_call: Choice = None
    tool_prompt: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARACTERS)] | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None  # llama.cpp's name of it, as the next
    reasoning_budget_tokens: Budget | None = None

    _tool_use: ToolUse = PrivateAttr(NO_TOOLS)

    @property
    def tool_use(self) -> ToolUse:
        return self._tool_use

    @property
    def reasons(self) -> bool | None:
        """Whether the model is to reason; None if the request does not say. An effort says so where no switch does:
        some templates reason only if they are told to.
        """
        variables = self.chat_template_kwargs or {}
        given = [variables[name] for name in SWITCHES if isinstance(variables.get(name), bool)]
        if given:
            return any(given)
        return self.reasoning_effort != "none" if self.reasoning_effort else None

    @property
    def reasoning_budget(self) -> tuple[str, int] | None:
        """The most tokens of reasoning, and the field that says so; None without a limit."""
        given = ((name, getattr(self, name)) for name in BUDGETS)
        return next(((name, budget) for name, budget in given if budget not in (None, -1)), None)

    @property
    def lists_logprobs(self) -> bool:
        return bool(self.logprobs) or super().lists_logprobs

    @property
    def alternatives(self) -> dict[str, int]:
        return {**super().alternatives, "top_logprobs": self.top_logprobs or 0}

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def template_variables(self) -> dict[str, Any]:
        named = {"reasoning_effort": self.reasoning_effort, "documents": self.documents or None}
        given = {name: value for name, value in named.items() if value is not None}
        switched = {} if self.reasons is None else dict.fromkeys(SWITCHES, self.reasons)
        return switched | given | (self.chat_template_kwargs or {})

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
    def _fields_agree(self) -> "ChatFields":
        self._heed(self.reasoning)
        if self.add_generation_prompt and self.continue_final_message:
            message = "add_generation_prompt and continue_final_message exclude each other"
            raise RequestError.invalid(message, "continue_final_message")
        if self.top_logprobs and not self.logprobs:
            raise RequestError.invalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        if self.reasoning_effort == "none" and self.reasons:
            message = "reasoning_effort none and chat_template_kwargs that switch reasoning on exclude each other"
            raise RequestError.invalid(message, "reasoning_effort")
        self._tool_use = self._chosen_tools()
        return self

    def _heed(self, reasoning: ReasoningOptions | None) -> None:
        for name, value in (reasoning.fields(self.reasoning_effort) if reasoning else {}).items():
            if getattr(self, name) not in (None, value):
                raise RequestError.invalid(f"{name} and reasoning do not say the same: give one of them", name)
            setattr(self, name, value)
        if self.use_beam_search and reasoning and reasoning.max_tokens not in (None, -1):
            raise not_with_beams("reasoning.max_tokens other than -1", "reasoning.max_tokens")

    def _chosen_tools(self) -> ToolUse:
        if self.functions and self.tools:
            raise RequestError.invalid("functions is the older name of tools: give only one of them", "functions")
        parallel = self.parallel_tool_calls is not False
        tools = [each.function for each in self.tools or () if each.function is not None]
        check_functions(tools, "tools")
        check_functions(self.functions or [], "functions")
        older = tool_use(
            self.functions or [], self.function_call, field="function_call", legacy=True, parallel=parallel
        )
        newer = tool_use(tools, self.tool_choice, field="tool_choice", legacy=False, parallel=parallel)
        return older if self.functions else newer


class ChatRequest(ChatFields):
    """Body of `/v1/chat/completions`."""

    messages: Conversation

    @property
    def echoed(self) -> str:
        """The text that the answer repeats before its own: of a final message by the assistant, with `echo`."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    @model_validator(mode="after")
    def _can_go_on(self) -> "ChatRequest":
        if self.continue_final_message and not self.messages[-1].text:
            message = "continue_final_message needs a final message with content"
            raise RequestError.invalid(message, "continue_final_message")
        return self


class BatchRequest(ChatFields):
    """Body of `/v1/chat/completions/batch`: several chats, for each of which the other fields hold."""

    messages: Annotated[list[Conversation], Field(min_length=1, fail_fast=True)]

    @property
    def chats(self) -> list[ChatRequest]:
        """Each chat as a request of its own. Raises RequestError."""
        same = {name: getattr(self, name) for name in self.model_fields_set - {"messages"}}
        return [ChatRequest(messages=messages, **same) for messages in self.messages]

    @model_validator(mode="after")
    def _is_plain(self) -> "BatchRequest":
        plain = {"stream": not self.stream, "n": self.choices == 1, "prompt_logprobs": self.prompt_logprobs is None}
        plain["use_beam_search"] = not self.use_beam_search
        for name, holds in plain.items():
            if not holds:
                raise RequestError.invalid(f"{name} is not supported for several chats in one request", name)
        return self
