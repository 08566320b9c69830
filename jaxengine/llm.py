"""The engine in this process, for notebooks and tests: `LLM(model).generate(prompts, SamplingParams(...))`.

from jaxengine.llm import LLM, SamplingParams
print(LLM().generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
print(LLM().chat([{"role": "user", "content": "What is the capital of France?"}])[0].text)

The engine knows token ids only. Text, stop strings and chat templates are read and written by `gateway.text`, the code
of the server.
"""

import dataclasses
import itertools
import operator
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm.auto import tqdm

from convert.cache import cache_root
from convert.source import open_model
from gateway.text.chat_template import ChatTemplate, TemplateError
from gateway.text.detokenizer import Detokenizer
from gateway.text.model_files import find_template, read_json, special_tokens
from gateway.text.stop_strings import StopMatcher
from gateway.text.tokenizer import Tokenizer
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.pooling import Pooling, pooling_named
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Beam, Event, FinishReason, Token
from jaxengine.request.interface import AdapterRefused
from jaxengine.request.sampling_params import SamplingParams as EngineParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine

__all__ = ["LLM", "BeamSearch", "Completion", "SamplingParams"]

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]

ROUNDING = 1024  # characters that a prompt may have beyond those that surely fit


@dataclass(frozen=True, kw_only=True)
class SamplingParams(EngineParams):
    """The engine's parameters, and those that need text. `stop` is one string or several; the text ends before the
    first that occurs.
    """

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
    beams: "list[Completion]" = field(default_factory=list)  # of a beam search, the best first; this one is empty then
    score: float | None = None  # of a beam, see `BeamSearch`
    embedding: bytes = b""  # float32 [hidden], of `LLM.embed`

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]


class LLM:
    """A model, loaded and compiled. Other arguments are those of `EngineOptions`.

    Args:
        merge_adapter: a PEFT adapter that is merged with the model while it is loaded.
        lora_adapters: PEFT adapters beside the model, by the names that `generate` and `chat` take. With `enable_lora`
            more can come later, see `load_adapter`.

    Raises:
        CheckpointError: the model or an adapter cannot be found or read.
        ValueError: the options contradict the model or the devices.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        revision: str | None = None,
        *,
        merge_adapter: str | Path | None = None,
        lora_adapters: Mapping[str, str | Path] | None = None,
        **options: object,
    ) -> None:
        enable_compile_cache(compile_cache_in(cache_root()))
        settings = EngineOptions(**options)  # type: ignore[arg-type]
        drafter = settings.speculation.model if settings.speculation else None
        opened = open_model(_as_text(model), revision, adapter=_as_text(merge_adapter), drafter=drafter)
        self.directory = opened.directory
        self.tokenizer = Tokenizer.load(opened.directory)
        adapters = [NamedAdapter(name, str(path)) for name, path in (lora_adapters or {}).items()]
        self.engine = load_engine(opened, settings, adapters=adapters)
        self.ids = itertools.count()

    def load_adapter(self, name: str, path: str | Path, *, in_place: bool = False) -> None:
        """Have the PEFT adapter at `path` answer to `name`, if `in_place` instead of another of that name.

        Raises:
            ValueError: it cannot be read, or does not fit the model or `max_lora_rank`; the name is taken; or `LLM` was
                made without `enable_lora` and without adapters.
        """
        adapter = NamedAdapter(name, str(path))
        try:
            self.engine.load_adapter(adapter.name, adapter.path, in_place=in_place)
        except AdapterRefused as error:
            raise ValueError(str(error)) from error

    def unload_adapter(self, name: str) -> None:
        """Raises ValueError if no adapter is called `name`."""
        try:
            self.engine.unload_adapter(name)
        except AdapterRefused as error:
            raise ValueError(str(error)) from error

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Complete `prompts` (text, token ids, or a list of either) together; results in their order.

        `sampling_params` is one for all or one for each, and so is the name of the `adapter` that answers; "" is the
        model itself. A request without a seed gets a random one. One that fails
        inside the engine ends with its `error`, and takes nothing from the others.

        Raises:
            ValueError: a prompt or parameter is out of range, before anything runs.
        """
        return self._run(self._encode(prompts), sampling_params, adapter, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        search: BeamSearch,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        use_tqdm: bool = True,
    ) -> list[list[Completion]]:
        """The likeliest completions of `prompts` that `search` finds: for each prompt a list, the best first.

        `sampling_params` have penalties, bounds and ends, and temperature 0, which is their default here. A search that
        fails inside the engine is a list of one completion, with its `error`.

        Raises:
            ValueError: as `generate`; or the parameters do not go with a beam search, such as `stop`.
        """
        params = SamplingParams(temperature=0) if sampling_params is None else sampling_params
        searches = self._run(self._encode(prompts), params, adapter, use_tqdm, search)
        return [each.beams or [each] for each in searches]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        adapter: str | Sequence[str] = "",
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """`prompts` as vectors, float32 [prompts, hidden]: their hidden states as the option `pooling` says, of unit
        length if they are to `normalize`.

        Raises:
            ValueError: as `generate`; or the model makes no embeddings.
            RuntimeError: a prompt fails inside the engine.
        """
        pooling = pooling_named(self.engine.description.pooling)
        if pooling is None:
            raise ValueError("this model makes no embeddings")
        params = SamplingParams(temperature=0, max_tokens=1)
        made = self._run(self._encode(prompts), params, adapter, use_tqdm, pooling=pooling)
        if failed := [each.error for each in made if not each.embedding]:
            raise RuntimeError(failed[0])
        vectors = np.stack([np.frombuffer(each.embedding, "<f4") for each in made])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """The assistant's next message in a chat, or in several; as `generate` otherwise.

        Raises:
            ValueError: as `generate`; or the model has no chat template, or its template refuses the messages.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        texts = [self._rendered(chat) for chat in (messages if several else [messages])]  # type: ignore[arg-type]
        ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return self._run(ids, sampling_params, adapter, use_tqdm)

    def _run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | Sequence[str],
        use_tqdm: bool,
        search: BeamSearch | None = None,
        pooling: Pooling | None = None,
    ) -> list[Completion]:
        count = len(prompts)
        each = _one_each(SamplingParams() if params is None else params, SamplingParams, count, "sampling parameters")
        names = _one_each(adapter, str, count, "adapters")
        completions = {next(self.ids): Completion(*pair) for pair in zip(prompts, map(_seeded, each), strict=True)}
        requests = [
            Request(id, made.prompt_ids, made.params, adapter=name, beam_search=search, pooling=pooling)
            for (id, made), name in zip(completions.items(), names, strict=True)
        ]
        if search is not None and any(made.params.stops for made in completions.values()):
            raise ValueError("beam search does not go with stop: name stop_token_ids")
        for request in requests:  # all of them before one is taken
            self.engine.check(request)
        for request in requests:
            self.engine.submit(request)
        try:
            running = {id: _Running(each, partial(self._detokenizer, each)) for id, each in completions.items()}
            with tqdm(total=len(completions), unit="prompt", disable=not use_tqdm) as bar:
                while not self.engine.idle or self.engine.preparing:
                    if self.engine.idle:  # an adapter is read again, on another thread
                        time.sleep(0.001)
                    self._step(running)
                    bar.update(len(completions) - len(running) - bar.n)
        except BaseException:  # the user interrupted: the next call must not find what is left
            for id in completions:
                self.engine.cancel(id)
            raise
        return list(completions.values())

    def _detokenizer(self, completion: Completion) -> Detokenizer:
        behind_encoder = self.engine.description.decoder_start_token_id is not None  # the prompt gives no context
        context = [] if behind_encoder else completion.prompt_ids
        return Detokenizer(self.tokenizer, context, skip_special_tokens=completion.params.skip_special_tokens)

    @cached_property
    def _template(self) -> ChatTemplate:
        config = read_json(self.directory / "tokenizer_config.json")
        source = find_template(self.directory, config)
        if source is None:
            raise ValueError("the model has no chat template")
        can_fit = self.tokenizer.longest * self.engine.description.max_total_tokens + ROUNDING
        return ChatTemplate(source, special_tokens(self.directory, config), can_fit)

    def _rendered(self, chat: Sequence[Message]) -> str:
        """The prompt that the model's template makes of `chat`."""
        if isinstance(chat, str) or not all(isinstance(message, Mapping) for message in chat):
            raise ValueError(f"a chat is a list of messages such as {{'role': 'user', 'content': …}}, got {chat!r}")
        try:
            return self._template.render([*map(dict, chat)], add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(str(error)) from error

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))
        batch: Sequence[Prompt] = [prompts] if single else prompts  # type: ignore[list-item, assignment]
        return [self._ids(prompt) for prompt in batch]

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        try:
            return [*map(operator.index, prompt)]
        except TypeError as error:
            raise ValueError(f"a prompt is a text or a list of token ids, got {prompt!r}") from error

    def _step(self, running: dict[int, "_Running"]) -> None:
        result = self.engine.step()
        for event in result.events if result else ():
            if (one := running.get(event.request_id)) is None:  # given up, or ended by a stop string
                continue
            one.add(event)
            if one.completion.finish_reason:
                del running[event.request_id]
                self.engine.cancel(event.request_id)  # the engine knows nothing of stop strings


class _Running:
    """A completion that the engine still works on."""

    def __init__(self, completion: Completion, new_detokenizer: Callable[[], Detokenizer]) -> None:
        params = completion.params
        self.completion = completion
        self._new_detokenizer = new_detokenizer
        self._detokenizer = new_detokenizer()
        self._stops = StopMatcher([*params.stops], keep=params.include_stop_str_in_output)
        self._parts: list[str] = []

    def add(self, event: Event) -> None:
        """Add what a step brought; end the completion at its first stop string, or for the engine's reason."""
        made = self.completion
        if event.first:
            made.prompt_tokens, made.cached_tokens = [*event.prompt], event.cached_tokens
        made.beams, made.embedding = [self._beam(beam) for beam in event.beams], event.embedding
        for token in event.tokens:
            made.tokens.append(token)
            if made.params.stops:
                self._release(self._detokenizer.push(token.id))
            if made.finish_reason:
                return
        if event.finish is not FinishReason.NOT_FINISHED:
            self._end(event)

    def _beam(self, beam: Beam) -> Completion:
        made = Completion(self.completion.prompt_ids, self.completion.params, [*beam.tokens], score=beam.score)
        made.text = self._new_detokenizer().flush(made.token_ids)
        made.finish_reason, made.cached_tokens = beam.finish.name.lower(), self.completion.cached_tokens
        return made

    def _end(self, event: Event) -> None:
        made = self.completion
        self._release(self._detokenizer.flush(() if made.params.stops else made.token_ids))
        if not made.finish_reason:
            made.finish_reason, made.error = event.finish.name.lower(), event.error
            made.text = "".join([*self._parts, self._stops.flush()])

    def _release(self, text: str) -> None:
        """Show `text` as far as no stop string may have begun in it. None ends the
        text before `min_tokens`, as on the server."""
        made = self.completion
        release = self._stops.push(text, may_end=len(made.tokens) > made.params.min_tokens)
        self._parts.append(release.text)
        if release.stop is not None:
            made.finish_reason, made.stop_reason = "stop", release.stop
            made.text = "".join(self._parts)


def _as_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _one_each(given: T | Sequence[T], kind: type[T], count: int, what: str) -> Sequence[T]:
    each: Sequence[T] = [given] * count if isinstance(given, kind) else given  # type: ignore[assignment]
    if len(each) != count:
        raise ValueError(f"{count} prompts but {len(each)} {what}")
    return each


def _seeded(params: SamplingParams) -> SamplingParams:
    return params if params.seed is not None else dataclasses.replace(params, seed=secrets.randbits(64))
