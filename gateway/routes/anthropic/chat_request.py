"""A body of the Messages API as the one internal request for a chat, `ChatRequest`, which is OpenAI's."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gateway.errors import Kind, RequestError
from gateway.http.validation_messages import describe
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.routes.anthropic.content import Block, Message, chat_content
from gateway.routes.anthropic.schemas import CountRequest, MessagesRequest, Tool, ToolChoice
from gateway.routes.openai.messages import MAX_CALLS
from gateway.routes.openai.schemas import SWITCHES, ChatRequest
from gateway.text.content import joined

# The first line of Claude Code's system prompt, which tells its maker who pays. It differs in every request, so that no
# prefix would ever be found in the cache; vLLM drops it too.
BILLING = "x-anthropic-billing-header"
EFFORTS = {"xhigh": "high", "max": "high"}  # templates know low, medium and high
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(body: CountRequest, reasoning: ReasoningFormat | None) -> ChatRequest:
    """The chat that `body` asks for, of a model that reasons in the format `reasoning`. Raises RequestError."""
    last = body.messages[-1]
    if last.role == "assistant" and last.of("tool_use"):
        raise RequestError.invalid("messages ends in calls of tools: their results must follow", "messages")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": list(_messages(body)),
        "continue_final_message": last.role == "assistant" and bool(last.text),
        **_tools(body.tools or [], body.tool_choice),
        **_reasoning(body, reasoning),
        **(_sampling(body) if isinstance(body, MessagesRequest) else {}),
    }
    if body.format is not None:
        named = {"name": "answer", "schema": body.format.json_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:  # what only the chat knows to be wrong, such as too many messages
        message, field = describe(error)
        raise RequestError(Kind.SHAPE, message, param=field) from None


def _messages(body: CountRequest) -> Iterator[dict[str, Any]]:
    """All that is said to the model as a system first, since few templates take it later; then the conversation. A last
    message by the assistant without text begins no answer.
    """
    if system := "\n".join(_system(body)):
        yield {"role": "system", "content": system}
    for number, message in enumerate(body.messages):
        if message.role == "user":
            yield from _by_user(message)
        elif message.role == "assistant" and (message.text or number < len(body.messages) - 1):
            yield _by_assistant(message)


def _system(body: CountRequest) -> Iterator[str]:
    blocks = [block.text or "" for message in body.messages if message.role == "system" for block in message.blocks]
    given = [body.system] if isinstance(body.system, str) else [block.text or "" for block in body.system or ()]
    yield from (text for text in (*given, *blocks) if text and not text.startswith(BILLING))


def _by_user(message: Message) -> Iterator[dict[str, Any]]:
    """The results of tools, each a message of its own, then what the user says; a result has no place after it."""
    results = message.of("tool_result")
    yield from map(_result, results)
    said = [block for block in message.blocks if block.type != "tool_result"]
    if said or not results:
        yield {"role": "user", "content": chat_content(said)}


def _result(block: Block) -> dict[str, Any]:
    content = block.content or ""
    told = content if isinstance(content, str) else chat_content(content)
    if block.is_error:  # no template has a place for the flag
        told = joined("", ["Error: ", told])
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": told}


def _by_assistant(message: Message) -> dict[str, Any]:
    calls = message.of("tool_use")
    if len(calls) > MAX_CALLS:
        raise RequestError.invalid(f"messages: one holds {len(calls)} calls, at most {MAX_CALLS} are read", "messages")
    thoughts = "\n".join(block.thinking or "" for block in message.of("thinking"))
    optional = {"tool_calls": [_call(each) for each in calls], "reasoning": thoughts}
    given = {name: value for name, value in optional.items() if value}
    return {"role": "assistant", "content": message.text, **given}


def _call(block: Block) -> dict[str, Any]:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}


def _tools(tools: list[Tool], choice: ToolChoice | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": _function(each)} for each in tools] or None}
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        fields["tool_choice"] = named if choice.type == "tool" else CHOICES[choice.type]
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _function(tool: Tool) -> dict[str, Any]:
    given = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {name: value for name, value in given.items() if value is not None}


def _reasoning(body: CountRequest, reasoning: ReasoningFormat | None) -> dict[str, Any]:
    """Whether the model reasons, how hard, and for how long. A budget bounds reasoning whose end is a mark; of a model
    that does not reason it is kept anyway, and for harmony's, as for Anthropic's own models, it is a target.
    """
    thinking, variables = body.thinking, body.chat_template_kwargs
    given = body.output_config.effort if body.output_config is not None else None
    effort = EFFORTS.get(given or "", given)
    if thinking is None:  # an effort of a chat would switch reasoning on
        told = {"reasoning_effort": effort} if effort is not None else {}
        return {"chat_template_kwargs": told | (variables or {})}
    fields: dict[str, Any] = {"chat_template_kwargs": variables, "reasoning_effort": effort}
    if thinking.type == "disabled":
        return fields | {"reasoning_effort": "none"}
    fields["chat_template_kwargs"] = dict.fromkeys(SWITCHES, True) | (variables or {})
    fields["include_reasoning"] = thinking.display != "omitted"
    if reasoning is not None and not reasoning.harmony:
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _sampling(body: MessagesRequest) -> dict[str, Any]:
    same = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_k", "top_p")}
    return {**same, "stop": body.stop_sequences}
