"""The served model as Triton's back ends for language models show one: a text in, texts out.

As in both TensorRT-LLM's and vLLM's, the prompt stands in front of a whole answer unless `exclude_input_in_output` is
true, and a stream has only what is new.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from gateway.errors import RequestError
from gateway.http.encoding import in_thread
from gateway.images.picture import ReadPrompt, Source
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.written_images import read_beside
from gateway.routes.kserve.completion_request import completion_request
from gateway.routes.kserve.inference import InferRequest, InferResponse, Signature
from gateway.routes.kserve.text_answer import OUTPUTS, TextAnswer
from gateway.routes.kserve.text_inputs import IMAGE, INPUTS, REFUSED, SEEING_INPUTS, Given
from gateway.routes.openai import completions, validation
from gateway.routes.openai.renamed import renamed
from gateway.routes.openai.respond import Reply
from gateway.routes.openai.schemas import CompletionRequest
from gateway.text.model_text import ModelText

BLIND = Signature(INPUTS, OUTPUTS, decoupled=True, refused=REFUSED)
SEEING = replace(BLIND, inputs=SEEING_INPUTS, refused={name: why for name, why in REFUSED.items() if name != IMAGE})


class TextModel:
    """The language model, or one of its adapters."""

    def __init__(self, name: str, adapter: str = "", *, sees: bool = False) -> None:
        self.name, self.adapter = name, adapter
        self.signature = SEEING if sees else BLIND

    async def infer(
        self, gateway: Gateway, info: RequestInfo, request: InferRequest
    ) -> AsyncGenerator[InferResponse, None]:
        given = Given.of(request)
        _check_stream(given, request)
        with RequestLifecycle(gateway, info) as lifecycle, renamed(given.names):
            _, description = serving(gateway)
            ends = description.eos_token_ids
            body = await in_thread(lambda: completion_request(given, ends, self.adapter), when=given.constrains)
            body = validation.with_server_options(body, gateway)
            read = partial(_read_with_images, sources=_sources(given)) if given.images else completions.read_prompt
            reply = await completions.begin(gateway, body, lifecycle, read)
            answer = _stream if body.stream else _whole
            answers = answer(given, request, body, lifecycle, reply)
            with reply.grammar_fields.named():
                async with aclosing(answers):
                    async for response in answers:
                        yield response


def _sources(given: Given) -> list[Source]:
    return [Source.of_base64(each, IMAGE) for each in given.images]


async def _read_with_images(
    gateway: Gateway, _: ModelText, __: CompletionRequest, prompt: str | list[int], ___: int, *, sources: list[Source]
) -> ReadPrompt:
    return await read_beside(gateway, str(prompt), sources, field="text_input", of=IMAGE)


def _check_stream(given: Given, request: InferRequest) -> None:
    if not given.switch("stream"):
        return
    if not request.streams:
        message = "stream asks for several responses, this call has one: use generate_stream or ModelStreamInfer"
        raise RequestError.invalid(message, "stream")
    if "exclude_input_in_output" in given.others and not given.switch("exclude_input_in_output"):
        message = "exclude_input_in_output cannot be false in a stream, which has only what is new"
        raise RequestError.invalid(message, "exclude_input_in_output")


async def _whole(
    given: Given, request: InferRequest, body: CompletionRequest, lifecycle: RequestLifecycle, reply: Reply
) -> AsyncGenerator[InferResponse, None]:
    collected = await lifecycle.collect(reply.outputs)
    runs = reply.chosen(list(zip(reply.choices, collected, strict=True)))
    prompt = "" if given.switch("exclude_input_in_output") else str(body.prompts[0])
    answer = TextAnswer(given, [choice.output for choice, _ in runs], prompt, body.logprobs or 0, request.wants)
    deltas = [each for _, each in runs]
    tensors = await in_thread(lambda: answer.tensors(deltas), when=body.lists_logprobs)
    yield InferResponse(request.model, request.id, tuple(tensors), stats=lifecycle.stats())


async def _stream(
    given: Given, request: InferRequest, body: CompletionRequest, lifecycle: RequestLifecycle, reply: Reply
) -> AsyncGenerator[InferResponse, None]:
    """A response for each piece of a text; of several sequences, what the others have not said is empty."""
    answer = TextAnswer(given, reply.outputs, "", body.logprobs or 0, request.wants)
    running = len(reply.outputs)
    async with aclosing(lifecycle.run(reply.outputs)) as deltas:
        async for index, delta in deltas:
            running -= delta.finish is not None
            pieces = [[delta] if number == index else [] for number in range(len(reply.outputs))]
            tensors = await in_thread(partial(answer.tensors, pieces), when=body.lists_many(len(delta.tokens)))
            response = InferResponse(request.model, request.id, tuple(tensors), final=not running)
            if running:
                yield response
    yield replace(response, stats=lifecycle.stats())
