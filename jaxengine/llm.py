"""The engine in this process, for notebooks and tests: `LLM(model).generate(prompts, SamplingParams(...))`.

from jaxengine.llm import LLM, SamplingParams
print(LLM().generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
print(LLM().chat([{"role": "user", "content": "What is the capital of France?"}])[0].text)

What the engine itself refuses to know stands here: stop strings, and chats as their template writes them.
"""

import dataclasses
import itertools
import operator
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from convert.cache import cache_root
from convert.source import open_model
from jaxengine.executor.compile_cache import enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams as EngineParams
from jaxengine.request.sequence import Event, FinishReason, Request, Token
from jaxengine.startup.build import load_engine

__all__ = ["LLM", "Completion", "SamplingParams"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

PROBE = "text of a message"


@dataclass(frozen=True, kw_only=True)
class SamplingParams(EngineParams):
    """The engine's, and what needs text: `stop`, a string or several, ends the text in front of the first of them."""

    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self.stops):
            raise ValueError("stop holds an empty string")

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop


@dataclass
class Completion:
    """What one prompt became.

    `finish_reason` is "length", "eos", "stop_token", "stop" (`stop_reason` is the string) or "error": the request
    failed inside the engine, `error` says how, and what it had generated so far is here.
    """

    prompt_ids: list[int]
    params: SamplingParams
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: list[Token] = field(default_factory=list)  # with `prompt_logprobs`
    text: str = ""
    finish_reason: str = ""
    stop_reason: str | None = None
    error: str = ""
    cached_tokens: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]


class LLM:
    """A model, loaded and compiled. Arguments after `revision` are those of `EngineOptions`.

    Raises:
        CheckpointError: the model cannot be found or read.
        ValueError: the options contradict the model or the devices.
    """

    def __init__(self, model: str | Path | None = None, revision: str | None = None, **options: object) -> None:
        enable_compile_cache(cache_root() / "compiled")
        opened = open_model(None if model is None else str(model), revision)
        self.directory = opened.directory
        self.tokenizer = Tokenizer.from_file(str(opened.directory / "tokenizer.json"))
        self.engine = load_engine(opened, EngineOptions(**options))  # type: ignore[arg-type]
        self.ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Complete `prompts` (text, token ids, or a list of either) together; results in their order.

        `sampling_params` is one for all or one for each. A request without a seed gets a random one. One that fails
        inside the engine ends with its `error`, and takes nothing from the others.

        Raises:
            ValueError: a prompt or parameter is out of range, before anything runs.
        """
        return self._run(self._encode(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """The assistant's next message in a chat, or in several; as `generate` otherwise.

        Raises:
            ValueError: as `generate`; or the model has no chat template.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        texts = [self._templated(chat) for chat in (messages if several else [messages])]  # type: ignore[arg-type]
        ids = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        return self._run(ids, sampling_params, use_tqdm)

    def _run(
        self, prompts: list[list[int]], params: SamplingParams | Sequence[SamplingParams] | None, use_tqdm: bool
    ) -> list[Completion]:
        each = _one_each(SamplingParams() if params is None else params, len(prompts))
        completions = {
            next(self.ids): Completion(prompt, chosen)
            for prompt, chosen in zip(prompts, map(_seeded, each), strict=True)
        }
        requests = [Request(id, made.prompt_ids, made.params) for id, made in completions.items()]
        for request in requests:  # all of them before one is taken
            self.engine.check(request)
        for request in requests:
            self.engine.submit(request)
        try:
            running = dict(completions)
            with tqdm(total=len(completions), unit="prompt", disable=not use_tqdm) as bar:
                while not self.engine.idle:
                    self._step(running)
                    bar.update(len(completions) - len(running) - bar.n)
        except BaseException:  # the user interrupted: the next call must not find what is left
            for id in completions:
                self.engine.cancel(id)
            raise
        return list(completions.values())

    @cached_property
    def _template(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # takes a second, and only chats need it

        return PreTrainedTokenizerFast.from_pretrained(self.directory)

    def _templated(self, chat: Sequence[Message]) -> str:
        """The prompt that the model's template makes of `chat`."""
        if isinstance(chat, str) or not all(isinstance(message, Mapping) for message in chat):
            raise ValueError(f"a chat is a list of messages such as {{'role': 'user', 'content': …}}, got {chat!r}")
        return self._rendered([_in_parts(message) for message in chat] if self._wants_parts else [*map(dict, chat)])

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template looks for text in lists of parts, as those of models that see do: plain text they leave
        out."""
        return not self._shows(PROBE) and self._shows(_parts(PROBE))

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        try:
            text = self._rendered([{"role": "user", "content": content}])
        except (jinja2.TemplateError, TypeError):  # it does not take such a message
            return False
        return PROBE in text and str(_parts(PROBE)[0]) not in text  # a part written as Python writes it is no text

    def _rendered(self, chat: list[dict[str, Any]]) -> str:
        return str(self._template.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))
        batch: Sequence[Prompt] = [prompts] if single else prompts  # type: ignore[list-item, assignment]
        return [self._ids(prompt) for prompt in batch]

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt).ids
        try:
            return [*map(operator.index, prompt)]
        except TypeError as error:
            raise ValueError(f"a prompt is a text or a list of token ids, got {prompt!r}") from error

    def _step(self, running: dict[int, Completion]) -> None:
        result = self.engine.step()
        for event in result.events if result else ():
            completion = running.get(event.request_id)  # none if it has been given up
            if completion is None:
                continue
            self._add(completion, event)
            if completion.finish_reason:
                del running[event.request_id]

    def _add(self, completion: Completion, event: Event) -> None:
        """Add an event to what it belongs to; end it at its first stop string."""
        params = completion.params
        completion.tokens += event.tokens
        if event.first:
            completion.prompt_tokens, completion.cached_tokens = [*event.prompt], event.cached_tokens
        if event.finish is not FinishReason.NOT_FINISHED:
            completion.finish_reason, completion.error = event.finish.name.lower(), event.error
        if params.stops or completion.finish_reason:
            ids = completion.token_ids
            completion.text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        found = [(at, stop) for stop in params.stops if (at := completion.text.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda match: (match[0] + len(match[1]), match[0]))
            completion.text = completion.text[: at + len(stop) * params.include_stop_str_in_output]
            completion.finish_reason, completion.stop_reason = "stop", stop
            self.engine.cancel(event.request_id)


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": _parts(content) if isinstance(content, str) else content}


def _one_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    each = [params] * count if isinstance(params, SamplingParams) else params
    if len(each) != count:
        raise ValueError(f"{count} prompts but {len(each)} sampling parameters")
    return each


def _seeded(params: SamplingParams) -> SamplingParams:
    return params if params.seed is not None else dataclasses.replace(params, seed=secrets.randbits(64))
