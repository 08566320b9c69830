"""`/v1/messages`: a chat answered as Anthropic's message, whole or in events; and the count of a prompt's tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor
from gateway.routes.anthropic.chat_request import chat_request
from gateway.routes.anthropic.errors import error_event
from gateway.routes.anthropic.message_writer import MessageWriter, event
from gateway.routes.anthropic.schemas import CountRequest, MessagesRequest
from gateway.routes.openai import chat, validation
from gateway.routes.openai.chat_prompt import read_chat
from gateway.routes.openai.grammar_fields import GrammarFields
from gateway.routes.openai.identity import names, request_id
from gateway.routes.openai.schemas import ChatRequest


@dataclass(frozen=True)
class Reply:
    """A chat that is ready to be answered.

    head: the fields of the message beside what it says.
    takes_long: whether it takes milliseconds to read an answer of so many tokens.
    """

    head: dict[str, Any]
    output: OutputProcessor
    writer: MessageWriter
    grammar_fields: GrammarFields
    reads_thinking: bool

    @property
    def takes_long(self) -> bool:
        return self.output.generated > chat.LONG

    def message(self, deltas: list[OutputDelta]) -> dict[str, Any]:
        """The whole."""
        for delta in deltas:
            self.writer.write(delta)
        ending = self.writer.ending(self.output)
        return {**self.head, "content": self.writer.content(), **ending, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Counts of tokens so far. Those found in the cache are no input tokens, as Anthropic counts; what else enters
        the cache costs nothing, so no creation is counted.
        """
        cached = self.output.prompt.cached_tokens
        counts: dict[str, Any] = {
            "input_tokens": len(self.output.prompt_ids) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.output.generated,
        }
        if self.reads_thinking:
            counts["output_tokens_details"] = {"thinking_tokens": self.writer.thinking_tokens}
        return counts


async def respond(request: Request, gateway: Gateway, body: MessagesRequest, arrival: float) -> Response:
    """The answer to `body`: a stream where it asks for one, else the whole, unless the client leaves before."""
    if not body.stream:
        return await while_connected(request.receive, _whole(request, gateway, body, arrival))
    id = request_id(request)
    failure = partial(error_event, id=id)
    return await EventStream.begin(request, _stream(request, gateway, body, arrival), failure, {"request-id": id})


async def count(gateway: Gateway, body: CountRequest) -> Response:
    """The tokens of the prompt; nothing is generated, and no permit is needed."""
    model, description = serving(gateway)
    asked = await _chat_request(gateway, body)
    await validation.check_model(asked.model, gateway, description)
    return JSONResponse({"input_tokens": len((await read_chat(gateway, model, asked)).ids)})


async def _chat_request(gateway: Gateway, body: CountRequest) -> ChatRequest:
    model, _ = serving(gateway)
    read = partial(chat_request, body, gateway.formats(model).reasoning)
    return await in_thread(read, when=bool(body.tools or body.format))  # which checks their schemas


async def _begin(request: Request, gateway: Gateway, body: MessagesRequest, lifecycle: RequestLifecycle) -> Reply:
    """Validates, admits, renders and tokenises. Raises RequestError."""
    [begun], description = await chat.begin_chats(gateway, [await _chat_request(gateway, body)], lifecycle)
    [output] = begun.outputs
    head = {
        "id": f"msg_{request_id(request)}",
        "type": "message",
        "role": "assistant",
        "model": output.request.adapter or names(gateway.options, description)[0],
    }
    answer = begun.answer
    return Reply(head, output, MessageWriter(answer), begun.grammar_fields, answer.reads_reasoning)


async def _whole(request: Request, gateway: Gateway, body: MessagesRequest, arrival: float) -> Response:
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        reply = await _begin(request, gateway, body, lifecycle)
        with reply.grammar_fields.named():
            [deltas] = await lifecycle.collect([reply.output])
        return JSONResponse(await in_thread(partial(reply.message, deltas), when=reply.takes_long))


async def _stream(
    request: Request, gateway: Gateway, body: MessagesRequest, arrival: float
) -> AsyncGenerator[bytes, None]:
    """The events of the message, from its first token on: then it is known what of the prompt was in the cache."""
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        reply = await _begin(request, gateway, body, lifecycle)
        begun = False
        with reply.grammar_fields.named():
            async with aclosing(lifecycle.run([reply.output])) as deltas:
                async for _, delta in deltas:
                    if not begun:
                        yield _start(reply)
                        begun = True
                    for each in reply.writer.write(delta):
                        yield each
        yield event("message_delta", delta=reply.writer.ending(reply.output), usage=reply.usage())
        yield event("message_stop")


def _start(reply: Reply) -> bytes:
    message = {**reply.head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": reply.usage()}
    return event("message_start", message=message)
