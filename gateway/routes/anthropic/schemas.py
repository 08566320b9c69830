"""The bodies of `/v1/messages` and of its counter. `null` means absent; unknown fields are ignored, as in `/v1`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from gateway.errors import RequestError
from gateway.http.body import StrictModel
from gateway.routes.anthropic.content import Message, Text, named
from gateway.routes.anthropic.unsupported import UNSUPPORTED
from gateway.routes.openai.common import Probability, StopText
from gateway.routes.openai.schemas import MAX_MESSAGES, MAX_TEMPLATE_VARIABLES
from gateway.routes.openai.tools import MAX_NAME, MAX_TOOLS, NAME
from gateway.routes.openai.unsupported import refuse_unsupported

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Tool(StrictModel):
    """A tool that the client runs. Those that Anthropic runs, or describes to its models, are refused by name."""

    type: Annotated[str, Field(max_length=64)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_the_clients(self) -> "Tool":
        if self.type not in (None, "custom"):
            raise ValueError(f"tools of {named(self.type or '')} are not supported, only a client's own (custom)")
        for field in ("name", "input_schema"):
            if getattr(self, field) is None:
                raise ValueError(f"{field} is required")
        if not NAME.fullmatch(self.name or ""):
            raise ValueError("name must be of letters, digits, dots, underscores and hyphens")
        if (self.input_schema or {}).get("type", "object") != "object":
            raise ValueError("input_schema must be the schema of an object")
        return self


class ToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> "ToolChoice":
        if self.type == "tool" and not self.name:
            raise ValueError("a choice of type tool needs the tool's name")
        return self


class Thinking(StrictModel):
    """`display` omitted leaves the thinking out of the answer; it costs its tokens all the same."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _has_a_budget(self) -> "Thinking":
        if self.type == "enabled" and self.budget_tokens is None:
            raise ValueError("thinking of type enabled needs budget_tokens")
        return self


class OutputFormat(StrictModel):
    """JSON of a schema, which `json_schema` holds: pydantic's models have a `schema` of their own."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(StrictModel):
    """Body of `/v1/messages/count_tokens`: the fields that shape the prompt."""

    model_config = ConfigDict(extra="allow")  # so that unsupported fields can be told from absent ones

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Text | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older place of output_config.format
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_TEMPLATE_VARIABLES)  # vLLM's

    @property
    def format(self) -> OutputFormat | None:
        return self.output_format or (self.output_config.format if self.output_config else None)

    @model_validator(mode="after")
    def _is_served(self) -> "CountRequest":
        if self.output_format and self.output_config and self.output_config.format:
            message = "output_format is the older name of output_config.format: give only one of them"
            raise RequestError.invalid(message, "output_format")
        refuse_unsupported(self.model_extra or {}, UNSUPPORTED, {})
        return self


class MessagesRequest(CountRequest):
    """Body of `/v1/messages`."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None  # Anthropic's ends at 1
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    top_p: Probability | None = None
