"""`/v1/chat/completions`: messages through the model's template, and the answer as a message or as deltas."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import Request, Response

from gateway.http.encoding import aside, json_bytes, json_text
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor
from gateway.request.state import Gateway
from gateway.routes.openai import sampling, validation
from gateway.routes.openai.envelope import DONE, Envelope, ending, usage
from gateway.routes.openai.logprobs import Names, chat_logprobs, prompt_logprobs
from gateway.routes.openai.performance import timings
from gateway.routes.openai.schemas import ChatRequest
from gateway.text.model_text import TextModel
from jaxengine.rpc import engine_pb2 as pb

NO_PROMPT = {"prompt_logprobs": None, "prompt_token_ids": None}  # of several chats


async def answer(request: Request, gateway: Gateway, chats: Sequence[ChatRequest], arrival: float) -> Response:
    """The whole answer: the choices of one chat, or of each of several its only one."""
    body = chats[0]
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        outputs, description = await begin(gateway, lifecycle, *chats)
        envelope = Envelope(request, description, body, "chatcmpl", "chat.completion")
        collected = await lifecycle.collect(outputs)

        def worded() -> Response:
            bodies = chats if len(chats) > 1 else [body] * len(outputs)
            runs = enumerate(zip(bodies, outputs, collected, strict=True))
            choices = [_choice(each, index, output, deltas) for index, (each, output, deltas) in runs]
            shared = _of_prompt(body, outputs[0]) if len(chats) == 1 else NO_PROMPT
            return envelope.answer(choices, usage(outputs), **shared, **timings(gateway, lifecycle.stats()))

        return await aside(worded, large=body.lists_logprobs)


def _of_prompt(body: ChatRequest, output: OutputProcessor) -> dict[str, Any]:
    """What is told of the prompt beside the choices."""
    listed = None
    if body.prompt_logprobs is not None:
        listed = prompt_logprobs(output.model.tokenizer, output.prompt.tokens, body.prompt_logprobs)
    return {"prompt_logprobs": listed, "prompt_token_ids": output.prompt_ids if body.return_token_ids else None}


def _choice(body: ChatRequest, index: int, output: OutputProcessor, deltas: list[OutputDelta]) -> dict[str, Any]:
    tokens = [token for delta in deltas for token in delta.tokens]
    logprobs = chat_logprobs(_names(output, body), tokens, body.top_logprobs or 0) if body.logprobs else None
    message = {"role": "assistant", "content": body.echoed + output.text, "refusal": None, "reasoning": None}
    ids = [token.id for token in tokens] if body.return_token_ids else None
    return {"index": index, "message": message, "logprobs": logprobs, **ending(output), "token_ids": ids}


async def stream(request: Request, gateway: Gateway, body: ChatRequest, arrival: float) -> AsyncGenerator[bytes, None]:
    """Chunks: per choice its role, its text, its end; then usage if asked for; then `[DONE]`."""
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        outputs, description = await begin(gateway, lifecycle, body)
        envelope = Envelope(request, description, body, "chatcmpl", "chat.completion.chunk")
        if body.return_token_ids:
            envelope.add_to_next_chunk({"prompt_token_ids": outputs[0].prompt_ids})
        as_tgi = _reads_as_tgi(request, body)
        choices = [_Deltas(body, index, each, as_tgi=as_tgi) for index, each in enumerate(outputs)]
        async with aclosing(lifecycle.run(outputs)) as deltas:
            async for index, delta in deltas:
                choice = choices[index]
                for chunk in choice.opening():
                    yield envelope.chunk(chunk, outputs[index], 0)
                for chunk in await aside(partial(choice.of, delta), large=body.lists_many):
                    yield envelope.chunk(chunk, outputs[index], choice.answered)
        if body.include_usage:
            envelope.add_to_next_chunk(timings(gateway, lifecycle.stats()))
            yield envelope.with_usage(b"", usage(outputs))
        yield DONE


def _reads_as_tgi(request: Request, body: ChatRequest) -> bool:
    """Whether the client wants role and content in every delta: TGI's own, whose name for any model is `tgi`.

    OpenAI's SDKs, which may use that name too, want the role once: Python's adds up the roles it is sent.
    """
    return body.model == validation.TGI and "x-stainless-lang" not in request.headers


class _Deltas:
    """The chunks of one choice, without their envelope: `as_tgi` or as OpenAI writes them."""

    def __init__(self, body: ChatRequest, index: int, output: OutputProcessor, *, as_tgi: bool) -> None:
        self._index, self._output, self._as_tgi = index, output, as_tgi
        self._began = False
        self._echoed = body.echoed
        self._shows_ids, self._lists_logprobs = bool(body.return_token_ids), bool(body.logprobs)
        self._top = body.top_logprobs or 0
        self._names = _names(output, body)
        self.answered = 0  # generated tokens that chunks have told of

    def opening(self) -> list[bytes]:
        """What comes before the first token; nothing when it has been told."""
        if self._began:
            return []
        self._began = True
        role = self._chunk({"role": "assistant", "content": ""}, None)
        return [role, self._chunk(self._delta(self._echoed), None)] if self._echoed else [role]

    def of(self, delta: OutputDelta) -> list[bytes]:
        """The chunks that a delta adds."""
        self.answered += len(delta.tokens)
        chunks = []
        if delta.tokens and (self._lists_logprobs or self._shows_ids):
            logprobs = chat_logprobs(self._names, delta.tokens, self._top) if self._lists_logprobs else None
            ids = {"token_ids": [token.id for token in delta.tokens]} if self._shows_ids else {}
            chunks.append(self._chunk(self._delta(delta.text), logprobs, **ids))
        elif delta.text and self._as_tgi:
            chunks.append(self._chunk(self._delta(delta.text), None))
        elif delta.text:
            chunks.append(
                f'{{"index":{self._index},"delta":{{"content":{json_text(delta.text)}}},'
                '"logprobs":null,"finish_reason":null}'.encode()
            )
        if delta.finish is not None:
            last = self._delta("") if self._as_tgi else {}
            fields = {"index": self._index, "delta": last, "logprobs": None, **ending(self._output)}
            chunks.append(json_bytes(fields))
        return chunks

    def _delta(self, text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text} if self._as_tgi else {"content": text}

    def _chunk(self, delta: dict[str, str], logprobs: dict[str, Any] | None, **more: Any) -> bytes:
        fields = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return json_bytes({**fields, **more})


def _names(output: OutputProcessor, body: ChatRequest) -> Names:
    return Names(output.model.tokenizer, by_id=bool(body.return_tokens_as_token_ids))


async def begin(
    gateway: Gateway, lifecycle: RequestLifecycle, *chats: ChatRequest
) -> tuple[list[OutputProcessor], pb.Description]:
    """Validate, admit, render and tokenise: one output per choice of each chat."""
    model, description = serving(gateway)
    for body in chats:
        validation.check_model(body.model, gateway.options, description)
        validation.check_limits(body, gateway.options, description)
    lifecycle.admit(sum(body.choices for body in chats))
    each = [await _outputs(gateway, lifecycle, body, model, description) for body in chats]
    return [output for its in each for output in its], description


async def _outputs(
    gateway: Gateway, lifecycle: RequestLifecycle, body: ChatRequest, model: TextModel, description: pb.Description
) -> list[OutputProcessor]:
    with lifecycle.span("tokenize"):
        prompt = validation.truncated(await prompt_ids(model, body), body, gateway.max_input_tokens)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = validation.new_tokens(
        prompt, body.new_tokens, gateway.max_input_tokens, description.max_total_tokens, "messages", name=name
    )
    requests = sampling.generate_requests(body, prompt, limit, model)
    return [OutputProcessor(model, each, prompt, body.stops, sampling.policy(body)) for each in requests]


async def prompt_ids(model: TextModel, body: ChatRequest) -> list[int]:
    """The chat as the model reads it. Raises RequestError."""
    text = await prompt_text(model, body)
    return await model.encode(text, add_special_tokens=bool(body.add_special_tokens), field="messages")


async def prompt_text(model: TextModel, body: ChatRequest) -> str:
    """What the template makes of the chat. Raises RequestError."""
    continues = bool(body.continue_final_message)
    return await model.render(
        messages=[message.fields(_role(model, message.role)) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        variables=body.template_variables,
        template=body.chat_template,
    )


def _role(model: TextModel, role: str) -> str:
    """`developer` is OpenAI's newer word for `system`; few templates know it."""
    return "system" if role == "developer" and not model.knows_developer else role
