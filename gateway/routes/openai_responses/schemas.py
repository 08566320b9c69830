"""The bodies of `/v1/responses` and of its count of tokens: OpenAI's fields, and what other servers add to them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from gateway.errors import RequestError
from gateway.http.body import StrictModel
from gateway.routes.openai.common import Alternatives, Common
from gateway.routes.openai.reasoning_options import Budget
from gateway.routes.openai.schemas import (
    MAX_DOCUMENTS,
    MAX_TEMPLATE_CHARACTERS,
    MAX_TEMPLATE_VARIABLES,
    Choice,
)
from gateway.routes.openai.tools import MAX_TOOLS
from gateway.routes.openai.unsupported import refuse_unsupported
from gateway.routes.openai_responses.input_items import KIND, InputItems, MessageItem
from gateway.routes.openai_responses.unsupported import INCLUDED, NOTHING_TO_INCLUDE, OUR_NAMES, UNSUPPORTED

MAX_METADATA = 16  # pairs
FORMATS = ("text", "json_object", "json_schema")
_TOOL = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"enum": ["function"]},
        "name": {"type": "string"},
        "description": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "parameters": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
}
_FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": [*FORMATS]},
        "name": {"type": "string"},
        "schema": {"type": "object"},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "description": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
Tool = Annotated[dict[str, Any], WithJsonSchema(_TOOL)]  # read further as a tool of a chat
Format = Annotated[dict[str, Any], WithJsonSchema(_FORMAT)]


class TextOptions(StrictModel):
    """How the text of the answer is written. Further names within are hints."""

    format: Format | None = None

    @field_validator("format")
    @classmethod
    def _is_known(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type") not in FORMATS:
            raise ValueError(f"type must be one of {', '.join(FORMATS)}")
        if value is not None and value["type"] == "json_schema" and not isinstance(value.get("schema"), dict):
            raise ValueError("a json_schema needs its schema, an object")
        return value


class ReasoningOptions(StrictModel):
    effort: Annotated[str, Field(max_length=16)] | None = None


class PromptFields(StrictModel):
    """What shapes the prompt."""

    input: str | InputItems | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)
    documents: list[dict[str, Any]] | None = Field(None, max_length=MAX_DOCUMENTS)
    tool_prompt: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARACTERS)] | None = None

    @property
    def items(self) -> InputItems:
        """The input as items."""
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input or []

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, tools: list[Tool] | None) -> list[Tool] | None:
        for number, tool in enumerate(tools or ()):
            if (type := tool.get("type")) != "function":
                named = f" of type {type}" if isinstance(type, str) and KIND.fullmatch(type) else ""
                message = f"tools[{number}]: tools{named} are not supported, only those of type function"
                raise RequestError.invalid(message, f"tools[{number}].type")
        return tools


class ResponseRequest(PromptFields, Common):
    """Body of `/v1/responses`."""

    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    top_logprobs: Alternatives | None = None
    store: bool | None = None
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(None, max_length=MAX_METADATA)
    include_reasoning: bool | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    reasoning_budget_tokens: Budget | None = None

    @property
    def with_logprobs(self) -> bool:
        return bool(self.top_logprobs) or INCLUDED[0] in (self.include or ())

    @property
    def with_sealed_reasoning(self) -> bool:
        return INCLUDED[1] in (self.include or ())

    @field_validator("include")
    @classmethod
    def _is_known(cls, value: list[str] | None) -> list[str] | None:
        if not {*(value or ())} <= {*INCLUDED, *NOTHING_TO_INCLUDE}:
            raise ValueError(f"holds a name that is not known; of use are {' and '.join(INCLUDED)}")
        return value

    @model_validator(mode="after")
    def _is_supported(self) -> "ResponseRequest":
        refuse_unsupported({**dict(self), **(self.model_extra or {})}, UNSUPPORTED, OUR_NAMES)
        if self.continuous_usage:
            message = "stream_options.continuous_usage_stats is not supported: the last event has the usage"
            raise RequestError.invalid(message, "stream_options")
        return self


class CountRequest(PromptFields):
    """Body of `/v1/responses/input_tokens`."""

    model_config = ConfigDict(extra="allow")  # so that unsupported fields can be told from absent ones

    model: str | None = None

    @model_validator(mode="after")
    def _is_supported(self) -> "CountRequest":
        refuse_unsupported(self.model_extra or {}, UNSUPPORTED, OUR_NAMES)
        return self
