"""`POST /v1/responses`: from its body to a chat that runs, and from its output to a response, whole or by events.

As everywhere, a stream begins with the first token: what goes wrong before is an ordinary 4xx or 5xx. What goes wrong
later is told twice, for two kinds of clients: by `response.failed`, the last state of the response, and by an `error`
event, at which OpenAI's SDKs raise instead of taking what there is for the answer.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from gateway.errors import Kind, as_request_error
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread, json_bytes
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle
from gateway.request.output import OutputDelta
from gateway.routes.openai import chat, validation
from gateway.routes.openai.chat import Chat
from gateway.routes.openai.errors import error_body
from gateway.routes.openai.identity import names, request_id
from gateway.routes.openai.performance import load_header, timings
from gateway.routes.openai.priority import with_priority
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.openai_responses import stored
from gateway.routes.openai_responses.input_items import Item
from gateway.routes.openai_responses.output_items import Event, OutputWriter
from gateway.routes.openai_responses.response_object import Frame
from gateway.routes.openai_responses.schemas import CountRequest, ResponseRequest
from gateway.routes.openai_responses.translation import chat_of, in_our_words

MANY = 100  # items
# By what failed, OpenAI's codes of a response's error; its list has no others that fit.
CODES = {Kind.OVERLOADED: "rate_limit_exceeded", Kind.INVALID: "invalid_prompt"}


@dataclass(frozen=True)
class Run:
    """A response that the engine is about to write."""

    chat: Chat
    frame: Frame
    writer: OutputWriter
    conversation: Sequence[Item]


async def respond(request: Request, gateway: Gateway, body: ResponseRequest) -> Response:
    """The answer to `body`: its events where it asks for a stream, else the whole."""
    arrival = time.perf_counter()
    name = request_id(request, body.request_id)
    if body.stream:
        stream = _Stream(request, gateway, body, arrival)
        return await EventStream.begin(request, stream.events(), stream.failure, {"x-request-id": name})
    answer = await while_connected(request.receive, _whole(request, gateway, body, arrival))
    answer.headers.update(load_header(request, gateway))
    return answer


async def conversation(request: Request, gateway: Gateway, body: ResponseRequest | CountRequest) -> list[Item]:
    """All items that the answer is to follow. Raises RequestError."""
    earlier = await stored.before(request, gateway, body.previous_response_id) if body.previous_response_id else []
    return [*earlier, *await stored.resolved(request, gateway, body.items)]


async def translated(body: ResponseRequest | CountRequest, items: list[Item]) -> ChatRequest:
    """The chat that `body` asks for, beside the event loop where that may take long. Raises RequestError."""
    takes_long = bool(body.tools or body.text or len(items) > MANY)  # schemas are checked
    return await in_thread(partial(chat_of, body, items), when=takes_long)


async def _begin(request: Request, gateway: Gateway, body: ResponseRequest, lifecycle: RequestLifecycle) -> Run:
    """Translate, validate, admit and tokenise. Raises RequestError."""
    items = await conversation(request, gateway, body)
    asked = await translated(body, items)
    asked = validation.with_server_options(with_priority(asked, request), gateway)
    [begun], description = await chat.begin_chats(gateway, [asked], lifecycle)
    model = begun.outputs[0].request.adapter or names(gateway.options, description)[0]
    keeps = body.store is not False and gateway.responses.most > 0
    listed = (asked.top_logprobs or 0) if asked.logprobs else None
    writer = OutputWriter(begun, logprobs=listed, seal=body.with_sealed_reasoning)
    return Run(begun, Frame(body, begun, model, stored=keeps), writer, items)


async def _finished(
    request: Request, gateway: Gateway, run: Run, lifecycle: RequestLifecycle, writer: OutputWriter
) -> dict[str, Any]:
    """The finished response, once it is stored, if it is to be: the client may ask for it at once."""
    response = run.frame.finished(writer.items, writer.reasoning_tokens)
    if run.frame.stored:
        response["store"] = await stored.keep(request, gateway, response, run.conversation)
    return response | timings(gateway, lifecycle.stats())


async def _whole(request: Request, gateway: Gateway, body: ResponseRequest, arrival: float) -> Response:
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle, in_our_words(body):
        run = await _begin(request, gateway, body, lifecycle)
        with run.chat.grammar_fields.named():
            [deltas] = await lifecycle.collect(run.chat.outputs)

        def write() -> None:
            for delta in deltas:
                run.writer.write(delta)

        takes_long = body.with_logprobs or run.chat.takes_long
        await in_thread(write, when=takes_long)
        response = await _finished(request, gateway, run, lifecycle, run.writer)
        content = await in_thread(partial(json_bytes, response), when=takes_long)
        return Response(content, media_type="application/json")


class _Stream:
    """The events of one response, numbered."""

    def __init__(self, request: Request, gateway: Gateway, body: ResponseRequest, arrival: float) -> None:
        self._request, self._gateway, self._body, self._arrival = request, gateway, body, arrival
        self._run: Run | None = None
        self._number = 0

    async def events(self) -> AsyncGenerator[bytes, None]:
        """All events, as the tokens come; those of one delta together."""
        info = RequestInfo.of(self._request, self._arrival)
        with RequestLifecycle(self._gateway, info) as lifecycle, in_our_words(self._body):
            run = await _begin(self._request, self._gateway, self._body, lifecycle)
            with run.chat.grammar_fields.named():
                async with aclosing(lifecycle.run(run.chat.outputs)) as deltas:
                    async for _, delta in deltas:
                        opening = b"" if self._run else self._opening(run)
                        if events := opening + await self._written(run, delta):
                            yield events
            response = await _finished(self._request, self._gateway, run, lifecycle, run.writer)
            yield self._event((f"response.{response['status']}", {"response": response}))

    def failure(self, error: Exception) -> bytes:
        """The last events of a stream that breaks."""
        why = as_request_error(error)
        said = error_body(why)["error"]
        told = {"code": CODES.get(why.kind, "server_error"), "message": why.message}
        events = b""
        if self._run is not None:
            failed = self._run.frame.failed(self._run.writer.so_far(), told)
            events = self._event(("response.failed", {"response": failed}))
        flat = {name: said[name] for name in ("code", "message", "param")}
        return events + self._event(("error", {**flat, "error": said}))

    def _opening(self, run: Run) -> bytes:
        self._run = run
        begun = {"response": run.frame.begun()}
        return self._event(("response.created", begun)) + self._event(("response.in_progress", begun))

    async def _written(self, run: Run, delta: OutputDelta) -> bytes:
        many = self._body.with_logprobs and run.chat.body.lists_many(len(delta.tokens))
        return await in_thread(lambda: b"".join(map(self._event, run.writer.write(delta))), when=many)

    def _event(self, event: Event) -> bytes:
        type, fields = event
        data = json_bytes({"type": type, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)
