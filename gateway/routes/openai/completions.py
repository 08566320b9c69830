"""`/v1/completions`: plain prompts, one or several, as texts or token ids."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import Request, Response

from gateway.http.encoding import aside, json_bytes, json_text
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor, TokenText
from gateway.request.state import Gateway
from gateway.routes.openai import sampling, validation
from gateway.routes.openai.envelope import DONE, Envelope, ending, usage
from gateway.routes.openai.logprobs import Names, completion_logprobs, prompt_logprobs, prompt_offsets
from gateway.routes.openai.performance import timings
from gateway.routes.openai.schemas import CompletionRequest
from gateway.text.model_text import TextModel
from gateway.text.tokenizer import refuse_unknown_ids
from jaxengine.rpc import engine_pb2 as pb

DEFAULT_TOKENS = 16  # OpenAI's for a completion; a chat has none
VLLMS = ("token_ids", "prompt_token_ids", "prompt_logprobs")  # null in a whole choice unless asked for


async def answer(request: Request, gateway: Gateway, body: CompletionRequest, arrival: float) -> Response:
    """The whole answer; choice `i * n + j` is the j-th of prompt i."""
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        choices, description = await _begin(gateway, lifecycle, body)
        envelope = Envelope(request, description, body, "cmpl", "text_completion")
        outputs = [choice.output for choice in choices]
        collected = await lifecycle.collect(outputs)
        chosen = _best(body, list(zip(choices, collected, strict=True)))

        def worded() -> Response:
            fields = [choice.whole(index, deltas) for index, (choice, deltas) in enumerate(chosen)]
            spent = usage(outputs, generated=_generated(body))
            return envelope.answer(fields, spent, **timings(gateway, lifecycle.stats()))

        return await aside(worded, large=body.lists_logprobs)


async def stream(
    request: Request, gateway: Gateway, body: CompletionRequest, arrival: float
) -> AsyncGenerator[bytes, None]:
    """Chunks of all choices as they come; then usage if asked for; then `[DONE]`."""
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        choices, description = await _begin(gateway, lifecycle, body)
        envelope = Envelope(request, description, body, "cmpl", "text_completion")
        outputs = [choice.output for choice in choices]
        async with aclosing(lifecycle.run(outputs)) as deltas:
            async for index, delta in deltas:
                choice = choices[index]
                large = body.lists_many or (body.lists_logprobs and delta.prompt is not None)
                for chunk in await aside(partial(choice.chunks, delta), large=large):
                    yield envelope.chunk(chunk, choice.output, choice.answered)
        if body.include_usage:
            envelope.add_to_next_chunk(timings(gateway, lifecycle.stats()))
            yield envelope.with_usage(b"", usage(outputs, generated=_generated(body)))
        yield DONE


def _best(
    body: CompletionRequest, runs: list[tuple["_Choice", list[OutputDelta]]]
) -> list[tuple["_Choice", list[OutputDelta]]]:
    """Of each prompt's sequences the `n` with the highest mean logprob, the best first."""
    if body.sequences == body.choices:
        return runs
    chosen = []
    for first in range(0, len(runs), body.sequences):
        ranked = sorted(runs[first : first + body.sequences], key=lambda run: _mean_logprob(run[1]), reverse=True)
        chosen += ranked[: body.choices]
    return chosen


def _mean_logprob(deltas: list[OutputDelta]) -> float:
    logprobs = [token.logprob for delta in deltas for token in delta.tokens]
    return sum(logprobs) / max(1, len(logprobs))


def _generated(body: CompletionRequest) -> int | None:
    """0 where the one token the engine must make was not asked for."""
    return 0 if body.silent else None


class _Choice:
    """One sequence, and the prompt text it echoes."""

    def __init__(self, body: CompletionRequest, index: int, output: OutputProcessor, echo: str) -> None:
        self.output = output
        self._index, self._echo = index, echo
        self._silent = body.silent
        self._lists_logprobs = body.logprobs is not None
        self._top = body.logprobs or 0
        self._prompt_top = body.prompt_logprobs
        self._echoes_logprobs = self._lists_logprobs and bool(body.echo)
        self._shows_ids = bool(body.return_token_ids)
        self._tokenizer = output.model.tokenizer
        self._names = Names(self._tokenizer, by_id=bool(body.return_tokens_as_token_ids))
        self._began = False
        self.answered = 0  # generated tokens that chunks have told of

    def whole(self, index: int, deltas: list[OutputDelta]) -> dict[str, Any]:
        """The finished choice, as number `index` of the answer."""
        self._index = index
        prompt = next((delta.prompt for delta in deltas if delta.prompt is not None), None)
        tokens = [token for delta in deltas for token in delta.tokens]
        merged = OutputDelta(tokens, self.output.text, self.output.finish, prompt)
        fields = dict.fromkeys(VLLMS) | self._fields(merged, self._echo)
        if self._prompt_top is not None:
            known = prompt.tokens if prompt is not None else []
            fields["prompt_logprobs"] = prompt_logprobs(self._tokenizer, known, self._prompt_top)
        return fields

    def chunks(self, delta: OutputDelta) -> list[bytes]:
        """At most one chunk; the echo comes with the first."""
        echo = "" if self._began else self._echo
        first, self._began = not self._began, True
        self.answered += 0 if self._silent else len(delta.tokens)
        if self._lists_logprobs:
            fields = self._fields(delta, echo, first=first)
            shows = fields["text"] or fields["logprobs"]["tokens"] or self._shows_ids or delta.finish is not None
            return [json_bytes(fields)] if shows else []
        if delta.finish is not None or self._shows_ids or (first and echo):
            return [json_bytes(self._fields(delta, echo, first=first))]
        if not delta.text:
            return []
        text = json_text(delta.text)
        return [f'{{"index":{self._index},"text":{text},"logprobs":null,"finish_reason":null}}'.encode()]

    def _fields(self, delta: OutputDelta, echo: str, *, first: bool = True) -> dict[str, Any]:
        end = ending(self.output) if delta.finish is not None else {"finish_reason": None}
        text = echo if self._silent else echo + delta.text
        ids = self._ids(delta, first=first) if self._shows_ids else {}
        return {"index": self._index, "text": text, "logprobs": self._logprobs(delta), **end, **ids}

    def _ids(self, delta: OutputDelta, *, first: bool) -> dict[str, list[int]]:
        prompt = {"prompt_token_ids": self.output.prompt_ids} if first else {}
        return {"token_ids": [] if self._silent else [token.id for token in delta.tokens], **prompt}

    def _logprobs(self, delta: OutputDelta) -> dict[str, Any] | None:
        if not self._lists_logprobs:
            return None
        shown = [] if self._silent else delta.tokens
        tokens: list[TokenText | pb.Token] = list(shown)
        offsets = [len(self._echo) + token.start for token in shown]
        if self._echoes_logprobs and delta.prompt is not None:
            tokens = [*delta.prompt.tokens, *tokens]
            offsets = prompt_offsets(self._tokenizer, delta.prompt.tokens, self._echo) + offsets
        return completion_logprobs(self._names, tokens, offsets, self._top)


async def _begin(
    gateway: Gateway, lifecycle: RequestLifecycle, body: CompletionRequest
) -> tuple[list[_Choice], pb.Description]:
    """Validate, admit and tokenise: one choice per prompt and `n`."""
    model, description = serving(gateway)
    validation.check_model(body.model, gateway.options, description)
    validation.check_limits(body, gateway.options, description)
    validation.check_count(len(body.prompts), "prompt", "prompts", gateway.options)
    lifecycle.admit(len(body.prompts) * body.sequences)
    policy = sampling.policy(body)
    choices: list[_Choice] = []
    for prompt in body.prompts:
        with lifecycle.span("tokenize"):
            asked = await _ids(model, body, prompt, description.vocab_size)
        ids = validation.truncated(asked, body, gateway.max_input_tokens)
        limit = validation.new_tokens(
            ids,
            1 if body.silent else body.max_tokens,
            gateway.max_input_tokens,
            description.max_total_tokens,
            "prompt",
            otherwise=DEFAULT_TOKENS,
        )
        requests = sampling.generate_requests(
            body, ids, limit, model, echo_logprobs=bool(body.echo) and body.logprobs is not None
        )
        echo = _echo(model, prompt, ids, whole=len(ids) == len(asked)) if body.echo else ""
        for each in requests:
            output = OutputProcessor(model, each, ids, body.stops, policy)
            choices.append(_Choice(body, len(choices), output, echo))
    return choices, description


async def _ids(model: TextModel, body: CompletionRequest, prompt: str | list[int], vocab_size: int) -> list[int]:
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        return await model.encode(prompt, add_special_tokens=special, field="prompt", cut=body.cut)
    refuse_unknown_ids(prompt, vocab_size, "prompt")
    return prompt


def _echo(model: TextModel, prompt: str | list[int], ids: list[int], *, whole: bool) -> str:
    """The prompt as it was sent: a text, or the text of all its ids; what is left of it where it is not `whole`."""
    if isinstance(prompt, list):
        return model.tokenizer.decode(ids, skip_special_tokens=False)
    if whole:
        return prompt
    own = [id for id in ids if id not in model.tokenizer.put_around]
    return model.tokenizer.decode(own, skip_special_tokens=False)
