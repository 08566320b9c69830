"""`/v1/completions`: one prompt or several, each a text or token ids."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from gateway.http.encoding import in_thread, json_bytes, json_text
from gateway.images.picture import ReadPrompt
from gateway.request.gateway_state import Gateway
from gateway.request.images import add_images
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputDelta, OutputProcessor, TokenText
from gateway.routes.openai import sampling, validation
from gateway.routes.openai.envelope import finish_fields, usage
from gateway.routes.openai.grammar_fields import GrammarFields
from gateway.routes.openai.logprobs import TokenNames, completion_logprobs, prompt_logprobs, prompt_offsets
from gateway.routes.openai.respond import Choice, Reply, Run
from gateway.routes.openai.schemas import CompletionRequest
from gateway.samplers.breakers import dry_breakers
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb

DEFAULT_TOKENS = 16  # OpenAI's for a completion; a chat has none
NULL_UNLESS_ASKED = ("token_ids", "prompt_token_ids", "prompt_logprobs")  # vLLM's fields of a whole choice


# Reads a prompt, for a vocabulary of a size.
Reader = Callable[[Gateway, ModelText, CompletionRequest, str | list[int], int], Awaitable[ReadPrompt]]


async def read_prompt(
    gateway: Gateway, model: ModelText, body: CompletionRequest, prompt: str | list[int], vocab_size: int
) -> ReadPrompt:
    """A prompt without images. Raises RequestError."""
    sight = gateway.pictures.sight
    if isinstance(prompt, str):
        if sight is not None:
            sight.refuse_spelled(prompt, "prompt")
        special = body.add_special_tokens is not False
        return ReadPrompt(await model.encode(prompt, add_special_tokens=special, field="prompt", cut=body.cut))
    validation.refuse_unknown_ids(prompt, vocab_size, "prompt")
    if sight is not None:
        sight.refuse_id(prompt, "prompt")
    return ReadPrompt(prompt)


async def begin(
    gateway: Gateway, body: CompletionRequest, lifecycle: RequestLifecycle, read: Reader = read_prompt
) -> Reply:
    """Validate, admit and tokenise, by `read`: choice `i * n + j` is the j-th of prompt i. Raises RequestError."""
    model, description = serving(gateway)
    adapter = await validation.check_model(body.model, gateway, description)
    validation.check_limits(body, gateway.options, description)
    validation.check_count(len(body.prompts), "prompt", "prompts", gateway.options)
    lifecycle.admit(len(body.prompts) * body.sequences)
    choices: list[_TextChoice] = []
    for prompt in body.prompts:
        with lifecycle.span("tokenize"):
            asked = await read(gateway, model, body, prompt, description.vocab_size)
        for output, echo in await _outputs(gateway, lifecycle, body, adapter, prompt, asked, model, description):
            choices.append(_TextChoice(body, len(choices), output, echo))
    return _TextReply(description, choices, body)


async def _outputs(
    gateway: Gateway,
    lifecycle: RequestLifecycle,
    body: CompletionRequest,
    adapter: str,
    prompt: str | list[int],
    asked: ReadPrompt,
    model: ModelText,
    description: pb.Description,
) -> list[tuple[OutputProcessor, str]]:
    """The sequences of one prompt, which was read as `asked`, and with each the text it echoes."""
    context = validation.context(body, gateway, description)
    wanted = 1 if body.echo_only else body.max_tokens
    read = validation.truncated(asked, body, context, wanted)
    ids = read.ids
    limit = validation.new_tokens(ids, wanted, context, "prompt", otherwise=DEFAULT_TOKENS)
    echo_logprobs = bool(body.echo) and body.logprobs is not None
    breakers = await dry_breakers(body, model, description.vocab_size)
    make = partial(
        sampling.generate_requests, body, adapter, ids, limit, model, breakers=breakers, echo_logprobs=echo_logprobs
    )
    requests = await in_thread(make, when=body.is_tagged)
    await add_images(gateway, lifecycle, requests, read)
    echo = _echo(model, prompt, ids, whole=len(ids) == len(asked.ids)) if body.echo else ""
    return [(OutputProcessor(model, each, ids, body.stops, sampling.policy(body)), echo) for each in requests]


def _echo(model: ModelText, prompt: str | list[int], ids: list[int], *, whole: bool) -> str:
    """The prompt as the answer repeats it: the text that was sent, or the text of its ids; if it was truncated, what is
    left of it.
    """
    if isinstance(prompt, list):
        return model.tokenizer.decode(ids, skip_special_tokens=False)
    if whole:
        return prompt
    own = [id for id in ids if id not in model.tokenizer.wrapping_ids]
    return model.tokenizer.decode(own, skip_special_tokens=False)


class _TextReply(Reply):
    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, description: pb.Description, choices: Sequence[Choice], body: CompletionRequest) -> None:
        super().__init__(description, choices, GrammarFields.of(body.constraint))
        self._body = body

    def chosen(self, runs: list[Run]) -> list[Run]:
        """Of each prompt's `best_of` sequences the `n` with the highest mean logprob, the best first. A beam search has
        chosen by its own score.
        """
        made, wanted = self._body.sequences, self._body.choices
        if made == wanted or self._body.use_beam_search:
            return runs
        chosen = []
        for first in range(0, len(runs), made):
            ranked = sorted(runs[first : first + made], key=lambda run: _mean_logprob(run[1]), reverse=True)
            chosen += ranked[:wanted]
        return chosen

    def usage(self) -> dict[str, Any]:
        """The one token that the engine must make for an echo is not counted."""
        return usage(self.outputs, generated=0 if self._body.echo_only else None)


def _mean_logprob(deltas: list[OutputDelta]) -> float:
    logprobs = [token.logprob for delta in deltas for token in delta.tokens]
    return sum(logprobs) / max(1, len(logprobs))


class _TextChoice:
    """A generated text, behind the prompt that it echoes."""

    def __init__(self, body: CompletionRequest, index: int, output: OutputProcessor, echo: str) -> None:
        self.output = output
        self._index, self._echo = index, echo
        self._echo_only = body.echo_only
        self._lists_logprobs = body.logprobs is not None
        self._top = body.logprobs or 0
        self._prompt_top = body.prompt_logprobs
        self._echoes_logprobs = self._lists_logprobs and bool(body.echo)
        self._shows_ids = bool(body.return_token_ids)
        self._tokenizer = output.model.tokenizer
        self._names = TokenNames(self._tokenizer, by_id=bool(body.return_tokens_as_token_ids))
        self._began = False
        self._answered = 0

    def whole(self, index: int, deltas: list[OutputDelta]) -> dict[str, Any]:
        self._index = index
        prompt = next((delta.prompt for delta in deltas if delta.prompt is not None), None)
        tokens = [token for delta in deltas for token in delta.tokens]
        merged = OutputDelta(tokens, self.output.text, self.output.finish, prompt)
        fields = dict.fromkeys(NULL_UNLESS_ASKED) | self._fields(merged, self._echo)
        if self._prompt_top is not None:
            known = prompt.tokens if prompt is not None else []
            fields["prompt_logprobs"] = prompt_logprobs(self._tokenizer, known, self._prompt_top)
        return fields

    def chunks(self, delta: OutputDelta) -> list[tuple[bytes, int]]:
        """At most one chunk; the echo comes with the first."""
        self._answered += 0 if self._echo_only else len(delta.tokens)
        chunk = self._chunk(delta)
        return [] if chunk is None else [(chunk, self._answered)]

    def _chunk(self, delta: OutputDelta) -> bytes | None:
        echo = "" if self._began else self._echo
        first, self._began = not self._began, True
        if self._lists_logprobs:
            fields = self._fields(delta, echo, first=first)
            shows = fields["text"] or fields["logprobs"]["tokens"] or self._shows_ids or delta.finish is not None
            return json_bytes(fields) if shows else None
        if delta.finish is not None or self._shows_ids or (first and echo):
            return json_bytes(self._fields(delta, echo, first=first))
        if not delta.text:
            return None
        text = json_text(delta.text)
        return f'{{"index":{self._index},"text":{text},"logprobs":null,"finish_reason":null}}'.encode()

    def _fields(self, delta: OutputDelta, echo: str, *, first: bool = True) -> dict[str, Any]:
        end = finish_fields(self.output) if delta.finish is not None else {"finish_reason": None}
        text = echo if self._echo_only else echo + delta.text
        ids = self._ids(delta, first=first) if self._shows_ids else {}
        return {"index": self._index, "text": text, "logprobs": self._logprobs(delta), **end, **ids}

    def _ids(self, delta: OutputDelta, *, first: bool) -> dict[str, list[int]]:
        prompt = {"prompt_token_ids": self.output.prompt_ids} if first else {}
        return {"token_ids": [] if self._echo_only else [token.id for token in delta.tokens], **prompt}

    def _logprobs(self, delta: OutputDelta) -> dict[str, Any] | None:
        if not self._lists_logprobs:
            return None
        shown = [] if self._echo_only else delta.tokens
        tokens: list[TokenText | pb.Token] = list(shown)
        offsets = [len(self._echo) + token.start for token in shown]
        if self._echoes_logprobs and delta.prompt is not None:
            tokens = [*delta.prompt.tokens, *tokens]
            offsets = prompt_offsets(self._tokenizer, delta.prompt.tokens, self._echo) + offsets
        return completion_logprobs(self._names, tokens, offsets, self._top)
