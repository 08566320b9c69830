"""A body of `/v1/responses` as a chat, and the refusals of that chat in the words of the body."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from gateway.errors import Kind, RequestError
from gateway.http.validation_messages import describe
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.openai_responses.conversation import messages
from gateway.routes.openai_responses.input_items import Item
from gateway.routes.openai_responses.schemas import CountRequest, PromptFields, ResponseRequest

# Fields that a chat has too, but of another kind.
TRANSLATED = {"tools", "stream", "stream_options", "top_logprobs", "response_format", "store", "metadata", "reasoning"}
OF_A_TOOL = ("name", "description", "parameters", "strict")
# What a chat calls it: what the body calls it. The longest stands first.
OUR_WORDS = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}
_WORDS = re.compile(rf"(?<![\w`.])(?:{'|'.join(map(re.escape, OUR_WORDS))})(?![\w`])|(?<=\])\.function\b")
_PLACE = re.compile(r"(?<=\bmessages)\[\d+\][\w.\[\]]*")  # an item is not the message of the same number


def chat_of(body: PromptFields, items: Sequence[Item]) -> ChatRequest:
    """The chat that `body` asks for, whose conversation is `items`. Raises RequestError in the words of a chat."""
    shared = (type(body).model_fields.keys() & ChatRequest.model_fields.keys()) - TRANSLATED
    fields = {name: getattr(body, name) for name in shared & body.model_fields_set}
    fields["messages"] = messages(body.instructions, items)
    fields["tools"] = [_tool(each) for each in body.tools] if body.tools else None
    if body.text is not None:
        fields["response_format"] = body.text.format
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if isinstance(body, ResponseRequest):
        fields["max_completion_tokens"] = body.max_output_tokens
        fields |= {"logprobs": body.with_logprobs, "top_logprobs": body.top_logprobs}
    if not fields["messages"]:
        raise RequestError.invalid("input is empty: it needs a text or an item", "input")
    try:
        return ChatRequest(**fields)
    except ValidationError as error:
        message, field = describe(error)
        raise RequestError(Kind.SHAPE, message, param=field) from None


@contextmanager
def in_our_words(body: ResponseRequest | CountRequest) -> Iterator[None]:
    """A refusal of the chat names the fields of `body`."""
    try:
        yield
    except RequestError as error:
        error.message = _worded(error.message)
        error.param = _worded(error.param) if error.param else None
        if error.kind is Kind.CONTEXT_LENGTH and body.truncation == "auto":
            error.message += "; truncation auto leaves nothing out here: send fewer items"
        raise


def _worded(text: str) -> str:
    return _WORDS.sub(lambda found: OUR_WORDS.get(found[0], ""), _PLACE.sub("", text))


def _tool(flat: dict[str, Any]) -> dict[str, Any]:
    """The tool as a chat has it, in the order of the client."""
    return {"type": "function", "function": {name: value for name, value in flat.items() if name in OF_A_TOOL}}
