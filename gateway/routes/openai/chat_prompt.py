"""The messages of a chat as the model reads them: one text, made by its template, that text's token ids, and the images
that stand among these.
"""

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from gateway.errors import Kind, RequestError
from gateway.images.markdown import cut
from gateway.images.picture import Picture, ReadPrompt
from gateway.images.sight import Sight
from gateway.request.gateway_state import Gateway
from gateway.routes.openai.history import template_messages
from gateway.routes.openai.messages import ContentPart, Message, image_sources
from gateway.routes.openai.schemas import ChatRequest
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import TokenSpan


@dataclass(frozen=True)
class ChatPrompt:
    """text: what the template writes, in which a placeholder stands for each image."""

    text: str
    read: ReadPrompt

    @property
    def ids(self) -> list[int]:
        return self.read.ids


async def read_chat(gateway: Gateway, model: ModelText, body: ChatRequest) -> ChatPrompt:
    """The prompt of the chat. Raises RequestError."""
    sight, text, pictures = await _read(gateway, model, body)
    special = _adds_special_tokens(sight, body, text)
    if sight is not None:
        return ChatPrompt(text, await sight.prompt(text, pictures, special=special, field="messages"))
    return ChatPrompt(text, ReadPrompt(await model.encode(text, add_special_tokens=special, field="messages")))


async def spans_of_chat(gateway: Gateway, model: ModelText, body: ChatRequest) -> tuple[str, list[TokenSpan]]:
    """The prompt's text and the tokens of it. Raises RequestError."""
    sight, text, pictures = await _read(gateway, model, body)
    special = _adds_special_tokens(sight, body, text)
    if sight is not None:
        return await sight.spans(text, pictures, special=special, field="messages")
    return text, await model.spans(text, add_special_tokens=special, field="messages")


async def _read(gateway: Gateway, model: ModelText, body: ChatRequest) -> tuple[Sight | None, str, list[Picture]]:
    """What the model sees with, the text that its template makes of the chat, and the chat's images."""
    sources = image_sources(body.messages)
    sight = gateway.pictures.seeing(sources, "messages") if sources else gateway.pictures.sight
    if sight is not None:
        _check_texts(body, gateway.options.payload_limit)
    text = await _prompt_text(model, body, sight)
    return sight, text, await sight.look(sources) if sight is not None else []


def _check_texts(body: ChatRequest, most: int) -> None:
    """Bodies may be larger where the model sees, for images alone: what is done with 32 MB of text holds the event loop
    too long. Raises RequestError.
    """
    if (length := sum(len(each.text) for each in body.messages)) > most:
        message = f"messages hold {length} characters of text, at most {most} are read (--payload-limit)"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param="messages")


def _adds_special_tokens(sight: Sight | None, body: ChatRequest, text: str) -> bool:
    """Whether the tokens that begin a text come before `text`. Where the chat does not say, they do if a processor of
    images would have them there.
    """
    if body.add_special_tokens is None and sight is not None:
        return sight.adds_special_tokens(text)
    return bool(body.add_special_tokens)


async def _prompt_text(model: ModelText, body: ChatRequest, sight: Sight | None) -> str:
    """What the template makes of the chat. Raises RequestError."""
    continues = bool(body.continue_final_message)
    said: dict[str, Any] = {
        "messages": template_messages(body.messages, knows_developer=model.knows_developer),
        "tools": body.tool_use.shown,
        "tool_prompt": body.tool_prompt,
        "variables": body.template_variables,
    }
    if sight is not None:  # JSON changes nothing in what stands for an image
        sight.refuse_spelled(json.dumps(said, ensure_ascii=False), "messages")
    return await model.render(
        **said,
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        template=body.chat_template,
    )


def with_written_images(gateway: Gateway, body: ChatRequest) -> ChatRequest:
    """`body` with the images that its user writes into texts as TGI has them, `![](https://…)`, as parts of their own;
    if the model sees.
    """
    if (sight := gateway.pictures.sight) is None:
        return body
    messages: list[Message] = []
    left = sight.most + 1  # with which the chat is refused
    for message in body.messages:
        messages.append(_with_written_images(message, left))
        left -= len(messages[-1].images) - len(message.images)
    return body.model_copy(update={"messages": messages})


def _with_written_images(message: Message, most: int) -> Message:
    if message.role != "user" or message.content is None:
        return message
    content = message.content
    parts = [ContentPart(type="text", text=content)] if isinstance(content, str) else content
    found = [piece for part in parts for piece in _pieces(part, most)]
    return message if len(found) == len(parts) else message.model_copy(update={"content": found})


def _pieces(part: ContentPart, most: int) -> list[ContentPart]:
    """`part` cut at its first `most` images."""
    texts, urls = cut(part.text or "", most, located=True)
    if not urls:
        return [part]
    found: list[ContentPart] = []
    for text, url in zip_longest(texts, urls):
        found += [ContentPart(type="text", text=text)] if text else []
        found += [ContentPart(type="image_url", image_url=url)] if url is not None else []
    return found
