"""TGI's routes: `/generate`, `/generate_stream`, `POST /`, `/info` and `/tokenize`.

Where they differ from TGI 3, each so that a correct client can't suffer from it:
- a stream that fails before its first token gets a real status instead of a 200 with an error event;
- every error is JSON;
- stop strings are found anywhere, also inside a token, and `generated_text` ends exactly there;
- text cut inside a character keeps everything before it, where TGI answers an empty string;
- `max_new_tokens` beyond 1024 is exact.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends, Request, Response

from gateway.body import read_body, takes
from gateway.exchange import Exchange, serving
from gateway.generation import Manner, Transcript
from gateway.sse import EventStream, while_connected
from gateway.state import Gateway, gateway_of
from gateway.tgi import answers
from gateway.tgi.errors import TgiRoute, error_event
from gateway.tgi.schemas import GenerateRequest
from gateway.tgi.validation import Limits, check_parameters, sampling, tokenize
from gateway.wire import json_bytes
from jaxengine.rpc import engine_pb2 as pb

MANNER = Manner(keep_stop=True, show_end=True, skip_special=True, length_first=True)
BODY = takes(GenerateRequest)
VERSION = "3.3.6-dev0"  # of TGI, whose contract this is: clients branch on it

router = APIRouter(route_class=TgiRoute, tags=["Text Generation Inference"])
public = APIRouter(route_class=TgiRoute, tags=["Text Generation Inference"])  # no key needed


@router.post("/generate", openapi_extra=BODY)
async def generate(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """One answer."""
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    return await _generate(request, gateway, body, arrival, full_text=bool(body.settings.return_full_text))


@router.post("/generate_stream", openapi_extra=BODY)
async def generate_stream(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """One event per token."""
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    return await _stream(request, gateway, body, arrival, full_text=bool(body.settings.return_full_text))


@router.post("/", openapi_extra=BODY)
async def compatible(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """As the Inference API: `stream` chooses the form, a plain answer is an array, the full text is the default."""
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    full_text = body.settings.return_full_text is not False
    if body.stream:
        return await _stream(request, gateway, body, arrival, full_text=full_text)
    return await _generate(request, gateway, body, arrival, full_text=full_text, in_array=True)


@router.post("/tokenize", openapi_extra=BODY)
async def tokenize_text(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Tokens of `inputs` with their byte ranges."""
    body = await read_body(request, GenerateRequest)
    model, _ = serving(gateway)
    spans = await model.spans(body.inputs, field="inputs")
    tokens = [{"id": each.id, "text": each.text, "start": each.start, "stop": each.stop} for each in spans]
    return Response(json_bytes(tokens), media_type="application/json")


@public.get("/info")
async def info(gateway: Gateway = Depends(gateway_of)) -> Response:
    """What is served, and within which limits."""
    _, description = serving(gateway)
    options = gateway.options
    fields = {
        "model_id": description.model_id,
        "model_sha": description.revision or None,
        "model_pipeline_tag": "text-generation",
        "model_dtype": description.dtype,
        "model_device_type": description.device_kind,
        "max_concurrent_requests": options.max_concurrent_requests,
        "max_best_of": options.max_best_of,
        "max_stop_sequences": options.max_stop_sequences,
        "max_input_tokens": gateway.max_input_tokens,
        "max_total_tokens": description.max_total_tokens,
        "max_batch_total_tokens": description.max_batch_total_tokens,
        "validation_workers": options.validation_workers,
        "max_client_batch_size": options.max_client_batch_size,
        "router": "text-generation-router",
        "version": VERSION,
        "sha": None,
        "docker_label": None,
    }
    return Response(json_bytes(fields), media_type="application/json")


async def _generate(
    request: Request,
    gateway: Gateway,
    body: GenerateRequest,
    arrival: float,
    *,
    full_text: bool,
    in_array: bool = False,
) -> Response:
    async def work() -> Response:
        with Exchange(gateway, arrival) as exchange:
            transcripts, description = await _begin(gateway, exchange, body, stream=False)
            steps = await exchange.collect(transcripts)
            outcomes = [
                answers.Outcome(transcript, its, body.settings)
                for transcript, its in zip(transcripts, steps, strict=True)
            ]
            answer = answers.generation(outcomes, body.inputs if full_text else "")
            headers = answers.compute_headers(description, body.inputs) | answers.timing_headers(exchange.served())
        content = json_bytes([answer] if in_array else answer)
        return Response(content, headers=headers, media_type="application/json")

    return await while_connected(request.receive, work())


async def _stream(
    request: Request, gateway: Gateway, body: GenerateRequest, arrival: float, *, full_text: bool
) -> Response:
    events = _events(gateway, body, arrival, body.inputs if full_text else "")
    description = gateway.engine.description or pb.Description()
    return await EventStream.begin(request, events, error_event, answers.compute_headers(description, body.inputs))


async def _events(
    gateway: Gateway, body: GenerateRequest, arrival: float, prompt_text: str
) -> AsyncGenerator[bytes, None]:
    with Exchange(gateway, arrival) as exchange:
        [transcript], _ = await _begin(gateway, exchange, body, stream=True)
        index = 0
        async with aclosing(exchange.run([transcript])) as steps:
            async for _, step in steps:
                for number, token in enumerate(step.tokens, 1):
                    index += 1
                    if step.finish is not None and number == len(step.tokens):
                        details = _last_details(transcript, body) if body.settings.details else None
                        text = prompt_text + transcript.text
                        yield answers.full_event(index, token, transcript.model, generated_text=text, details=details)
                    elif token.top:
                        yield answers.full_event(index, token, transcript.model, generated_text=None, details=None)
                    else:
                        yield answers.token_event(index, token)


def _last_details(transcript: Transcript, body: GenerateRequest) -> dict[str, object]:
    return {**answers.ending(transcript, body.settings), "input_length": len(transcript.prompt_ids)}


async def _begin(
    gateway: Gateway, exchange: Exchange, body: GenerateRequest, *, stream: bool
) -> tuple[list[Transcript], pb.Description]:
    """Validate, admit and tokenise: one transcript per sequence to generate."""
    model, description = serving(gateway)
    limits = Limits.of(gateway.options, gateway.max_input_tokens, description)
    check_parameters(body, limits, stream=stream)
    settings = body.settings
    copies = max(1, settings.best_of or 1)
    exchange.admit(copies)
    prompt, new_tokens = await tokenize(body, model, limits)
    prefill = settings.decoder_input_details and gateway.options.enable_prefill_logprobs
    requests = [
        pb.Generate(
            prompt=prompt,
            sampling=sampling(settings, prompt_logprobs=prefill),
            max_new_tokens=new_tokens,
        )
        for _ in range(copies)
    ]
    return [Transcript(model, each, prompt, settings.stop, MANNER) for each in requests], description
