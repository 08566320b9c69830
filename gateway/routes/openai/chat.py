"""`/v1/chat/completions`: messages through the model's template, and the answer as a message or as deltas."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request

from gateway.config.options import TGI
from gateway.http.encoding import in_thread, json_bytes, json_text
from gateway.request.gateway_state import Gateway
from gateway.request.images import add_images
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor
from gateway.routes.openai import sampling, validation
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.chat_constraint import constrain
from gateway.routes.openai.chat_prompt import read_chat, with_written_images
from gateway.routes.openai.envelope import finish_fields
from gateway.routes.openai.grammar_fields import GrammarFields
from gateway.routes.openai.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from gateway.routes.openai.message_writer import MessageWriter
from gateway.routes.openai.respond import Reply
from gateway.routes.openai.schemas import ChatRequest
from gateway.samplers.breakers import dry_breakers
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb

LONG = 1000  # tokens, of which a parser takes 4 to 6 µs each


@dataclass(frozen=True)
class Chat:
    """A chat that is ready to be answered, by an output per choice."""

    body: ChatRequest
    answer: AnswerFormat
    outputs: list[OutputProcessor]
    grammar_fields: GrammarFields

    def writer(self) -> MessageWriter | None:
        """Of one choice; None if its text is all of the message."""
        return None if self.answer.plain else MessageWriter(self.answer)

    def text(self, deltas: list[OutputDelta]) -> str:
        """The first choice, of these `deltas`, for clients that know texts only: its content, or its calls as JSON."""
        if (writer := self.writer()) is None:
            return self.outputs[0].text
        for delta in deltas:
            writer.write(delta)
        message = writer.message()
        calls = message.get("tool_calls") or message.get("function_call")
        return message["content"] or (json_bytes(calls).decode() if calls else "")

    @property
    def takes_long(self) -> bool:
        """Whether it takes milliseconds to parse a choice."""
        return not self.answer.plain and max(each.generated for each in self.outputs) > LONG


async def begin(request: Request, gateway: Gateway, body: ChatRequest, lifecycle: RequestLifecycle) -> Reply:
    """The choices of one chat. Raises RequestError."""
    [chat], description = await begin_chats(gateway, [with_written_images(gateway, body)], lifecycle)
    as_tgi = _reads_as_tgi(request, body)
    choices = [_ChatChoice(chat, index, each, as_tgi=as_tgi) for index, each in enumerate(chat.outputs)]
    return _ChatReply(description, choices, chat.grammar_fields, body)


async def begin_batch(gateway: Gateway, bodies: Sequence[ChatRequest], lifecycle: RequestLifecycle) -> Reply:
    """The only choice of each of several chats. Raises RequestError."""
    written = [with_written_images(gateway, body) for body in bodies]
    chats, description = await begin_chats(gateway, written, lifecycle)
    choices = [_ChatChoice(chat, index, chat.outputs[0], as_tgi=False) for index, chat in enumerate(chats)]
    return _ChatReply(description, choices, chats[0].grammar_fields, bodies[0] if len(bodies) == 1 else None)


async def begin_chats(
    gateway: Gateway, bodies: Sequence[ChatRequest], lifecycle: RequestLifecycle
) -> tuple[list[Chat], pb.Description]:
    """Validate, admit, render and tokenise each chat. Raises RequestError."""
    model, description = serving(gateway)
    adapters = []
    for body in bodies:
        adapters.append(await validation.check_model(body.model, gateway, description))
        validation.check_limits(body, gateway.options, description)
    lifecycle.admit(sum(body.choices for body in bodies))
    chats = [
        await _chat(gateway, lifecycle, body, adapter, model, description)
        for body, adapter in zip(bodies, adapters, strict=True)
    ]
    return chats, description


async def _chat(
    gateway: Gateway,
    lifecycle: RequestLifecycle,
    body: ChatRequest,
    adapter: str,
    model: ModelText,
    description: pb.Description,
) -> Chat:
    with lifecycle.span("tokenize"):
        chat = await read_chat(gateway, model, body)
        context = validation.context(body, gateway, description)
        read = validation.truncated(chat.read, body, context, body.new_tokens)
        text, prompt = chat.text, read.ids
        if body.cut == "right" and len(prompt) < len(chat.ids):
            text = await model.decode(prompt, skip_special_tokens=False)  # what the answer follows
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = validation.new_tokens(prompt, body.new_tokens, context, "messages", name=name)
    answer = AnswerFormat.of(body, text, gateway.formats(model))
    breakers = await dry_breakers(body, model, description.vocab_size)
    make = partial(sampling.generate_requests, body, adapter, prompt, limit, model, breakers=breakers)
    requests = await in_thread(make, when=body.is_tagged)
    hold = partial(constrain, requests, body, answer, model.tokenizer, gateway.options)
    grammar_fields = await in_thread(hold, when=body.tool_use.on)  # which checks their schemas
    policy = sampling.policy(body, answer.visible(model.tokenizer))
    await add_images(gateway, lifecycle, requests, read)
    outputs = [OutputProcessor(model, each, prompt, body.stops, policy) for each in requests]
    return Chat(body, answer, outputs, grammar_fields)


def _reads_as_tgi(request: Request, body: ChatRequest) -> bool:
    """Whether the client wants role and content in every delta: TGI's own, whose name for any model is `tgi`.

    OpenAI's SDKs, which may use that name too, want the role once: Python's adds up the roles it is sent.
    """
    return body.model == TGI and "x-stainless-lang" not in request.headers


class _ChatReply(Reply):
    """The choices of one chat, or, without `body`, of several."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        description: pb.Description,
        choices: "Sequence[_ChatChoice]",
        grammar_fields: GrammarFields,
        body: ChatRequest | None,
    ) -> None:
        super().__init__(description, choices, grammar_fields)
        self._body, self._choices = body, choices

    def usage(self) -> dict[str, Any]:
        counts = super().usage()
        if self._choices[0].reads_reasoning:
            spent = sum(choice.reasoning_tokens for choice in self._choices)
            counts["completion_tokens_details"] = {"reasoning_tokens": spent}
        return counts

    @property
    def takes_long(self) -> bool:
        return self._choices[0].parses and max(each.generated for each in self.outputs) > LONG

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

    def __init__(self, chat: Chat, index: int, output: OutputProcessor, *, as_tgi: bool) -> None:
        body = chat.body
        self.output = output
        self.reads_reasoning = chat.answer.reads_reasoning
        self._index, self._as_tgi = index, as_tgi
        self._writer = chat.writer()
        self._began = False
        self._echoed = body.echoed
        self._shows_ids, self._lists_logprobs = bool(body.return_token_ids), bool(body.logprobs)
        self._top = body.top_logprobs or 0
        self._names = TokenNames(output.model.tokenizer, by_id=bool(body.return_tokens_as_token_ids))
        self._answered = 0

    @property
    def parses(self) -> bool:
        return self._writer is not None

    @property
    def reasoning_tokens(self) -> int:
        return self._writer.reasoning_tokens if self._writer is not None else 0

    def whole(self, index: int, deltas: list[OutputDelta]) -> dict[str, Any]:
        tokens = [token for delta in deltas for token in delta.tokens]
        logprobs = chat_logprobs(self._names, tokens, self._top) if self._lists_logprobs else None
        ids = [token.id for token in tokens] if self._shows_ids else None
        fields = {"index": index, "message": self._message(deltas), "logprobs": logprobs}
        return {**fields, **self._finish_fields(), "token_ids": ids}

    def _message(self, deltas: list[OutputDelta]) -> dict[str, Any]:
        if self._writer is None:
            content = self._echoed + self.output.text
            return {"role": "assistant", "content": content, "refusal": None, "reasoning": None}
        for delta in deltas:
            self._writer.write(delta)
        return self._writer.message(self._echoed)

    def chunks(self, delta: OutputDelta) -> list[tuple[bytes, int]]:
        """Before the first delta the role and what is echoed; behind the last one the end."""
        opening = [(chunk, 0) for chunk in self._opening()]
        self._answered += len(delta.tokens)
        chunks = self._content(delta) if self._writer is None else self._parts(delta, self._writer)
        if delta.finish is not None:
            last = self._delta("") if self._as_tgi else {}
            fields = {"index": self._index, "delta": last, "logprobs": None}
            chunks.append(json_bytes({**fields, **self._finish_fields()}))
        return opening + [(chunk, self._answered) for chunk in chunks]

    def _opening(self) -> list[bytes]:
        if self._began:
            return []
        self._began = True
        role = self._chunk({"role": "assistant", "content": ""}, None)
        return [role, self._chunk(self._delta(self._echoed), None)] if self._echoed else [role]

    def _content(self, delta: OutputDelta) -> list[bytes]:
        """The delta's text."""
        if delta.tokens and (self._lists_logprobs or self._shows_ids):
            return [self._listing(self._delta(delta.text), delta)]
        if not delta.text:
            return []
        if self._as_tgi:
            return [self._chunk(self._delta(delta.text), None)]
        content = f'{{"content":{json_text(delta.text)}}}'
        return [f'{{"index":{self._index},"delta":{content},"logprobs":null,"finish_reason":null}}'.encode()]

    def _parts(self, delta: OutputDelta, writer: MessageWriter) -> list[bytes]:
        """What the delta's text is a part of. The first chunk lists the tokens, in whatever part they end up."""
        parts = [writer.tgi_delta(part) if self._as_tgi else part for part in writer.write(delta)]
        if not delta.tokens or not (self._lists_logprobs or self._shows_ids):
            return [self._chunk(part, None) for part in parts]
        first, *rest = parts or [self._delta("") if self._as_tgi else {}]
        return [self._listing(first, delta), *(self._chunk(part, None) for part in rest)]

    def _finish_fields(self) -> dict[str, Any]:
        fields = finish_fields(self.output)
        called = self._writer.finish_reason if self._writer is not None else None
        return fields if called is None else {**fields, "finish_reason": called}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": text} if self._as_tgi else {"content": text}

    def _listing(self, part: dict[str, Any], delta: OutputDelta) -> bytes:
        """A chunk with the logprobs and ids of the delta's tokens."""
        logprobs = chat_logprobs(self._names, delta.tokens, self._top) if self._lists_logprobs else None
        ids = {"token_ids": [token.id for token in delta.tokens]} if self._shows_ids else {}
        return self._chunk(part, logprobs, **ids)

    def _chunk(self, delta: dict[str, Any], logprobs: dict[str, Any] | None, **more: Any) -> bytes:
        fields = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return json_bytes({**fields, **more})
