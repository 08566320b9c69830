"""How the generating routes of `/v1` answer: whole, or in chunks while the tokens come.

Each route builds a `Reply`: one `Choice` for each sequence, which formats that sequence as JSON, and the fields next to
`choices`. This module does the rest for all routes.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Protocol

from fastapi import Request, Response

from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle
from gateway.request.output import OutputDelta, OutputProcessor
from gateway.routes.openai.common import Common
from gateway.routes.openai.envelope import DONE, Envelope, usage
from gateway.routes.openai.errors import error_event
from gateway.routes.openai.grammar_fields import GrammarFields
from gateway.routes.openai.identity import request_id
from gateway.routes.openai.performance import load_header, timings
from jaxengine.rpc import engine_pb2 as pb


class Choice(Protocol):
    """One sequence in the words of its route."""

    output: OutputProcessor

    def chunks(self, delta: OutputDelta) -> list[tuple[bytes, int]]:
        """The chunks that `delta` adds, as JSON; with each, how many generated tokens have been answered by then."""
        ...

    def whole(self, index: int, deltas: list[OutputDelta]) -> dict[str, Any]:
        """The finished choice, as number `index` of the answer."""
        ...


Run = tuple[Choice, list[OutputDelta]]


class Reply:
    """What a route has begun for one request."""

    prefix: ClassVar[str]  # of the answer's id
    object: ClassVar[str]  # the answer's type
    chunk_object: ClassVar[str]  # a chunk's type

    def __init__(self, description: pb.Description, choices: Sequence[Choice], grammar_fields: GrammarFields) -> None:
        self.description, self.choices, self.grammar_fields = description, choices, grammar_fields

    @property
    def outputs(self) -> list[OutputProcessor]:
        return [choice.output for choice in self.choices]

    @property
    def adapter(self) -> str:
        """The name of the one that answers; empty for the model itself."""
        return self.outputs[0].request.adapter

    def chosen(self, runs: list[Run]) -> list[Run]:
        """The finished choices to answer, in their order."""
        return runs

    def usage(self) -> dict[str, Any]:
        return usage(self.outputs)

    @property
    def takes_long(self) -> bool:
        """Whether it takes milliseconds to make the finished choices, besides any logprobs."""
        return False

    def extra_fields(self) -> dict[str, Any]:
        """Further fields of a whole answer."""
        return {}

    def first_chunk_fields(self) -> dict[str, Any]:
        """Further fields of a stream's first chunk."""
        return {}


Begin = Callable[[RequestLifecycle], Awaitable[Reply]]  # validates, admits, tokenises


async def respond(request: Request, gateway: Gateway, body: Common, arrival: float, begin: Begin) -> Response:
    """The answer to `body`: a stream where it asks for one, else the whole."""
    name = request_id(request, body.request_id)
    if body.stream:
        events = _stream(request, gateway, body, arrival, begin)
        return await EventStream.begin(request, events, error_event, {"x-request-id": name})
    answer = await respond_whole(request, gateway, body, arrival, begin)
    answer.headers.update(load_header(request, gateway))
    return answer


async def respond_whole(request: Request, gateway: Gateway, body: Common, arrival: float, begin: Begin) -> Response:
    """The whole answer, unless the client leaves before it is made."""
    return await while_connected(request.receive, _whole(request, gateway, body, arrival, begin))


async def _whole(request: Request, gateway: Gateway, body: Common, arrival: float, begin: Begin) -> Response:
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        reply = await begin(lifecycle)
        envelope = Envelope(request, reply.description, body, reply.adapter, reply.prefix, reply.object)
        with reply.grammar_fields.named():
            collected = await lifecycle.collect(reply.outputs)

        def encode_answer() -> Response:
            runs = reply.chosen(list(zip(reply.choices, collected, strict=True)))
            choices = [choice.whole(index, deltas) for index, (choice, deltas) in enumerate(runs)]
            beside = reply.extra_fields() | timings(gateway, lifecycle.stats())
            return envelope.answer(choices, reply.usage(), **beside)

        return await in_thread(encode_answer, when=body.lists_logprobs or reply.takes_long)


async def _stream(
    request: Request, gateway: Gateway, body: Common, arrival: float, begin: Begin
) -> AsyncGenerator[bytes, None]:
    """The chunks of all choices as they come; then usage if asked for; then `[DONE]`."""
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        reply = await begin(lifecycle)
        envelope = Envelope(request, reply.description, body, reply.adapter, reply.prefix, reply.chunk_object)
        envelope.add_to_next_chunk(reply.first_chunk_fields())
        with reply.grammar_fields.named():
            async with aclosing(lifecycle.run(reply.outputs)) as deltas:
                async for index, delta in deltas:
                    choice = reply.choices[index]
                    scored = delta.prompt is not None and len(delta.prompt.tokens) > 0
                    large = scored or body.lists_many(len(delta.tokens))
                    for chunk, answered in await in_thread(partial(choice.chunks, delta), when=large):
                        yield envelope.chunk(chunk, choice.output, answered)
        if body.include_usage:
            envelope.add_to_next_chunk(timings(gateway, lifecycle.stats()))
            yield envelope.with_usage(b"", reply.usage())
        yield DONE
