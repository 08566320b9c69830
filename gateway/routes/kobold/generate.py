"""`/api/v1/generate` and `/api/extra/generate/stream`, and what another request may do with one that runs."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http.body import parse_body, raw_body, refuse_compressed
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread, json_bytes
from gateway.http.sse import EventStream
from gateway.images.picture import ReadPrompt
from gateway.request.auth import caller_of
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import Finish, OutputDelta, OutputProcessor
from gateway.routes.kobold.completion_request import NAMES, completion_request
from gateway.routes.kobold.errors import error_event
from gateway.routes.kobold.lengths import Lengths
from gateway.routes.kobold.prompt import read_prompt
from gateway.routes.kobold.schemas import GenerateBody, NamedBody
from gateway.routes.openai import completions, validation
from gateway.routes.openai.renamed import renamed
from gateway.routes.openai.respond import Reply
from gateway.text.model_text import ModelText

NOT_FINISHED = "null"  # as KoboldCpp writes it
Deltas = AsyncGenerator[tuple[int, OutputDelta], None]


@dataclass(frozen=True)
class Running:
    """A generation that has begun: its sequences, and their deltas, which end early if somebody ends it by name."""

    outputs: list[OutputProcessor]
    deltas: Deltas


async def respond(request: Request, gateway: Gateway, body: GenerateBody, arrival: float) -> Response:
    """The whole answer, unless the client leaves before."""
    return await while_connected(request.receive, _whole(gateway, RequestInfo.of(request, arrival), body))


async def stream(request: Request, gateway: Gateway, body: GenerateBody, arrival: float) -> Response:
    """An event for each piece of the text. Raises RequestError before the first."""
    if body.n > 1:
        raise RequestError.invalid("n must be 1 where the text is streamed", "n")
    events = _events(gateway, RequestInfo.of(request, arrival), body)
    return await EventStream.begin(request, events, error_event, {})


async def check(request: Request, gateway: Gateway) -> Response:
    """The text so far of the generation that the body names; empty where it names none that runs."""
    name = await _named(request)
    text = gateway.named_generations.text(caller_of(request).number, name) if name else ""
    return JSONResponse({"results": [{"text": text}]})


async def abort(request: Request, gateway: Gateway) -> Response:
    """Ends the generations that the body names, of the same caller: they answer the text that they have.

    Without a name nothing is ended, and that is a success: a client that leaves has ended its own already, and must not
    end another's.
    """
    name = await _named(request)
    done = gateway.named_generations.end(caller_of(request).number, name) if name else True
    return JSONResponse(dict.fromkeys(("success", "done"), "true" if done else "false"))


async def _named(request: Request) -> str:
    """The body's name of a generation. There may be no body, and SillyTavern sends none, nor a type of it."""
    refuse_compressed(request)
    raw = await raw_body(request)
    return "" if raw.strip() in (b"", b"null") else (await parse_body(raw, NamedBody)).genkey or ""


async def _whole(gateway: Gateway, info: RequestInfo, body: GenerateBody) -> Response:
    async with _running(gateway, info, body) as running:
        async for _ in running.deltas:
            pass
        results = [
            {
                "text": output.text,
                "finish_reason": _reason(output),
                "prompt_tokens": len(output.prompt_ids),
                "completion_tokens": output.generated,
            }
            for output in running.outputs
        ]
    return JSONResponse({"results": results})


async def _events(gateway: Gateway, info: RequestInfo, body: GenerateBody) -> AsyncGenerator[bytes, None]:
    async with _running(gateway, info, body) as running:
        [output] = running.outputs
        last = ""
        async for _, delta in running.deltas:
            if delta.finish is not None:
                last = delta.text
            elif delta.text:
                yield _event(delta.text, NOT_FINISHED)
    yield _event(last, _reason(output))


@asynccontextmanager
async def _running(gateway: Gateway, info: RequestInfo, body: GenerateBody) -> AsyncIterator[Running]:
    """The generation within the life of its request. Raises RequestError, with KoboldCpp's names of fields."""
    names = gateway.named_generations
    with RequestLifecycle(gateway, info) as lifecycle, renamed(NAMES):
        async with names.running(info.caller.number, body.genkey) as generation:
            reply = await _begin(gateway, lifecycle, body)
            generation.output = reply.outputs[0]
            deltas = generation.until_ended(lifecycle.run(reply.outputs))
            with reply.grammar_fields.named():
                async with aclosing(deltas):
                    yield Running(reply.outputs, deltas)


async def _begin(gateway: Gateway, lifecycle: RequestLifecycle, body: GenerateBody) -> Reply:
    """Validates, admits and tokenises. Raises RequestError."""
    _, description = serving(gateway)
    lengths = Lengths.of(body.max_context_length, body.max_length, description.max_total_tokens)
    room = min(lengths.prompt, gateway.max_input_tokens)
    ends = description.eos_token_ids
    made = await in_thread(lambda: completion_request(body, lengths.answer, ends), when=bool(body.grammar))

    async def read(_: Gateway, model: ModelText, *__: Any) -> ReadPrompt:
        return await read_prompt(gateway, model, body, room)

    return await completions.begin(gateway, validation.with_server_options(made, gateway), lifecycle, read)


def _reason(output: OutputProcessor) -> str:
    return "length" if output.finish is Finish.LENGTH else "stop"


def _event(token: str, reason: str) -> bytes:
    return b"event: message\ndata: " + json_bytes({"token": token, "finish_reason": reason}) + b"\n\n"
