"""One `GenerateRequest` answered: as a whole, or as a stream of events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response
from starlette.responses import JSONResponse

from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway
from gateway.request.images import add_images
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputPolicy, OutputProcessor
from gateway.routes.tgi import answers
from gateway.routes.tgi.errors import error_event
from gateway.routes.tgi.grammar import constraint
from gateway.routes.tgi.sampling import sampling
from gateway.routes.tgi.schemas import GenerateRequest
from gateway.routes.tgi.validation import Limits, check_adapter, check_parameters, tokenize
from gateway.samplers.breakers import dry_breakers
from jaxengine.rpc import engine_pb2 as pb

POLICY = OutputPolicy(keep_stop=True, show_end=True, skip_special=True, length_first=True)


async def answer(
    request: Request,
    gateway: Gateway,
    body: GenerateRequest,
    arrival: float,
    *,
    full_text: bool,
    in_array: bool = False,
) -> Response:
    """The whole answer: an object, or, for the Inference API, an array of one."""

    async def work() -> Response:
        with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
            outcomes = await run(gateway, lifecycle, body)
            headers = answers.compute_headers(gateway, body.inputs)
            headers |= answers.timing_headers(lifecycle.stats(), outcomes[0])

            def encode_answer() -> Response:
                fields = answers.generation(outcomes, body.inputs if full_text else "")
                return JSONResponse([fields] if in_array else fields, headers=headers)

            settings = body.settings
            return await in_thread(encode_answer, when=bool(settings.top_n_tokens) or settings.decoder_input_details)

    return await while_connected(request.receive, work())


async def run(gateway: Gateway, lifecycle: RequestLifecycle, body: GenerateRequest) -> list[answers.Outcome]:
    """Generate all sequences of a request; the best one comes first."""
    outputs = await _begin(gateway, lifecycle, body, stream=False)
    deltas = await lifecycle.collect(outputs)
    outcomes = [answers.Outcome(each, its, body.settings) for each, its in zip(outputs, deltas, strict=True)]
    return sorted(outcomes, key=lambda outcome: outcome.mean_logprob, reverse=True)


async def stream(
    request: Request, gateway: Gateway, body: GenerateRequest, arrival: float, *, full_text: bool
) -> Response:
    """One event per token."""
    events = _events(gateway, RequestInfo.of(request, arrival), body, body.inputs if full_text else "")
    return await EventStream.begin(request, events, error_event, answers.compute_headers(gateway, body.inputs))


async def _events(
    gateway: Gateway, info: RequestInfo, body: GenerateRequest, prompt_text: str
) -> AsyncGenerator[bytes, None]:
    with RequestLifecycle(gateway, info) as lifecycle:
        [output] = await _begin(gateway, lifecycle, body, stream=True)
        index = 0
        async with aclosing(lifecycle.run([output])) as deltas:
            async for _, delta in deltas:
                for number, token in enumerate(delta.tokens, 1):
                    index += 1
                    if delta.finish is not None and number == len(delta.tokens):
                        details = _last_details(output, body) if body.settings.details else None
                        text = prompt_text + output.text
                        yield answers.full_event(index, token, output.model, generated_text=text, details=details)
                    elif token.top:
                        yield answers.full_event(index, token, output.model, generated_text=None, details=None)
                    else:
                        yield answers.token_event(index, token)


def _last_details(output: OutputProcessor, body: GenerateRequest) -> dict[str, object]:
    return {**answers.finish_fields(output, body.settings), "input_length": len(output.prompt_ids)}


async def _begin(
    gateway: Gateway, lifecycle: RequestLifecycle, body: GenerateRequest, *, stream: bool
) -> list[OutputProcessor]:
    """Validate, admit and tokenise: one output per sequence to generate."""
    model, description = serving(gateway)
    limits = Limits.of(gateway.options, gateway.max_input_tokens, description)
    check_parameters(body, limits, stream=stream)
    settings = body.settings
    adapter = await check_adapter(settings, gateway)
    supported = not gateway.options.disable_grammar_support
    asked = await in_thread(
        lambda: constraint(settings.grammar, supported=supported), when=settings.grammar is not None
    )
    copies = max(1, settings.best_of or 1)
    lifecycle.admit(copies)
    with lifecycle.span("tokenize"):
        prompt, new_tokens = await tokenize(gateway, body, model, limits)
    breakers = await dry_breakers(settings, model, description.vocab_size)
    prefill = settings.decoder_input_details and gateway.options.enable_prefill_logprobs
    requests = [
        pb.Generate(
            prompt=prompt.ids,
            sampling=sampling(settings, gateway.options, breakers=breakers, prompt_logprobs=prefill),
            max_new_tokens=new_tokens,
            grammar=asked.to_proto(model.tokenizer.marks) if asked else None,
            adapter=adapter,
        )
        for _ in range(copies)
    ]
    await add_images(gateway, lifecycle, requests, prompt)
    return [OutputProcessor(model, each, prompt.ids, settings.stop, POLICY) for each in requests]
