"""`/v1/chat/completions`: messages through the model's template, and the answer as a message or as deltas."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from gateway.http.encoding import json_bytes, json_text
from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor
from gateway.routes.openai import sampling, validation
from gateway.routes.openai.chat_prompt import prompt_ids
from gateway.routes.openai.envelope import finish_fields
from gateway.routes.openai.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from gateway.routes.openai.respond import Choice, Reply
from gateway.routes.openai.schemas import ChatRequest
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb


async def begin(request: Request, gateway: Gateway, body: ChatRequest, lifecycle: RequestLifecycle) -> Reply:
    """The choices of one chat. Raises RequestError."""
    [outputs], description = await begin_outputs(gateway, [body], lifecycle)
    as_tgi = _reads_as_tgi(request, body)
    choices = [_ChatChoice(body, index, each, as_tgi=as_tgi) for index, each in enumerate(outputs)]
    return _ChatReply(description, choices, body)


async def begin_batch(gateway: Gateway, chats: Sequence[ChatRequest], lifecycle: RequestLifecycle) -> Reply:
    """The only choice of each of several chats. Raises RequestError."""
    each, description = await begin_outputs(gateway, chats, lifecycle)
    numbered = enumerate(zip(chats, each, strict=True))
    choices = [_ChatChoice(body, index, output, as_tgi=False) for index, (body, [output]) in numbered]
    return _ChatReply(description, choices, chats[0] if len(chats) == 1 else None)


async def begin_outputs(
    gateway: Gateway, chats: Sequence[ChatRequest], lifecycle: RequestLifecycle
) -> tuple[list[list[OutputProcessor]], pb.Description]:
    """Validate, admit, render and tokenise: of each chat one output per choice. Raises RequestError."""
    model, description = serving(gateway)
    for body in chats:
        validation.check_model(body.model, gateway.options, description)
        validation.check_limits(body, gateway.options, description)
    lifecycle.admit(sum(body.choices for body in chats))
    return [await _outputs(gateway, lifecycle, body, model, description) for body in chats], description


async def _outputs(
    gateway: Gateway, lifecycle: RequestLifecycle, body: ChatRequest, model: ModelText, description: pb.Description
) -> list[OutputProcessor]:
    with lifecycle.span("tokenize"):
        prompt = validation.truncated(await prompt_ids(model, body), body, gateway.max_input_tokens)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = validation.new_tokens(
        prompt, body.new_tokens, gateway.max_input_tokens, description.max_total_tokens, "messages", name=name
    )
    requests = sampling.generate_requests(body, prompt, limit, model)
    return [OutputProcessor(model, each, prompt, body.stops, sampling.policy(body)) for each in requests]


def _reads_as_tgi(request: Request, body: ChatRequest) -> bool:
    """Whether the client wants role and content in every delta: TGI's own, whose name for any model is `tgi`.

    OpenAI's SDKs, which may use that name too, want the role once: Python's adds up the roles it is sent.
    """
    return body.model == validation.TGI and "x-stainless-lang" not in request.headers


class _ChatReply(Reply):
    """The choices of one chat, or, without `body`, of several."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, description: pb.Description, choices: Sequence[Choice], body: ChatRequest | None) -> None:
        super().__init__(description, choices)
        self._body = body

    def extra_fields(self) -> dict[str, Any]:
        """The prompt's logprobs and ids; null for several chats."""
        listed, ids, output = None, None, self.outputs[0]
        if self._body is not None and self._body.prompt_logprobs is not None:
            listed = prompt_logprobs(output.model.tokenizer, output.prompt.tokens, self._body.prompt_logprobs)
        if self._body is not None and self._body.return_token_ids:
            ids = output.prompt_ids
        return {"prompt_logprobs": listed, "prompt_token_ids": ids}

    def first_chunk_fields(self) -> dict[str, Any]:
        shows_ids = self._body is not None and self._body.return_token_ids
        return {"prompt_token_ids": self.outputs[0].prompt_ids} if shows_ids else {}


class _ChatChoice:
    """A message, or its deltas: `as_tgi` or as OpenAI writes them."""

    def __init__(self, body: ChatRequest, index: int, output: OutputProcessor, *, as_tgi: bool) -> None:
        self.output = output
        self._index, self._as_tgi = index, as_tgi
        self._began = False
        self._echoed = body.echoed
        self._shows_ids, self._lists_logprobs = bool(body.return_token_ids), bool(body.logprobs)
        self._top = body.top_logprobs or 0
        self._names = TokenNames(output.model.tokenizer, by_id=bool(body.return_tokens_as_token_ids))
        self._answered = 0

    def whole(self, index: int, deltas: list[OutputDelta]) -> dict[str, Any]:
        tokens = [token for delta in deltas for token in delta.tokens]
        content = self._echoed + self.output.text
        message = {"role": "assistant", "content": content, "refusal": None, "reasoning": None}
        logprobs = chat_logprobs(self._names, tokens, self._top) if self._lists_logprobs else None
        ids = [token.id for token in tokens] if self._shows_ids else None
        fields = {"index": index, "message": message, "logprobs": logprobs}
        return {**fields, **finish_fields(self.output), "token_ids": ids}

    def chunks(self, delta: OutputDelta) -> list[tuple[bytes, int]]:
        """Before the first delta the role and what is echoed; behind the last one the end."""
        opening = [(chunk, 0) for chunk in self._opening()]
        self._answered += len(delta.tokens)
        chunks = self._content(delta)
        if delta.finish is not None:
            last = self._delta("") if self._as_tgi else {}
            fields = {"index": self._index, "delta": last, "logprobs": None}
            chunks.append(json_bytes({**fields, **finish_fields(self.output)}))
        return opening + [(chunk, self._answered) for chunk in chunks]

    def _opening(self) -> list[bytes]:
        if self._began:
            return []
        self._began = True
        role = self._chunk({"role": "assistant", "content": ""}, None)
        return [role, self._chunk(self._delta(self._echoed), None)] if self._echoed else [role]

    def _content(self, delta: OutputDelta) -> list[bytes]:
        if delta.tokens and (self._lists_logprobs or self._shows_ids):
            logprobs = chat_logprobs(self._names, delta.tokens, self._top) if self._lists_logprobs else None
            ids = {"token_ids": [token.id for token in delta.tokens]} if self._shows_ids else {}
            return [self._chunk(self._delta(delta.text), logprobs, **ids)]
        if not delta.text:
            return []
        if self._as_tgi:
            return [self._chunk(self._delta(delta.text), None)]
        content = f'{{"content":{json_text(delta.text)}}}'
        return [f'{{"index":{self._index},"delta":{content},"logprobs":null,"finish_reason":null}}'.encode()]

    def _delta(self, text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text} if self._as_tgi else {"content": text}

    def _chunk(self, delta: dict[str, str], logprobs: dict[str, Any] | None, **more: Any) -> bytes:
        fields = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return json_bytes({**fields, **more})
