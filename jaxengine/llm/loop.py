"""What an `LLM` has running: requests of its calls and of streams that are open, and the engine's steps."""

import dataclasses
import itertools
import os
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tqdm.auto import tqdm

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer
from jaxengine.engine.engine import Engine
from jaxengine.llm.completion import AS_MANY, Completion, SamplingParams, Stream
from jaxengine.llm.running import Running
from jaxengine.options.pooling import Pooling
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.image import Image
from jaxengine.request.sequence import Request

T = TypeVar("T")
Params = SamplingParams | Sequence[SamplingParams] | None


class Prompted(NamedTuple):
    """A prompt as ids, as text unless it was given as ids, and the pictures in it."""

    ids: list[int]
    text: str | None
    images: tuple[Image, ...] = ()


class Loop:
    """The engine makes steps only while a call waits for one."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._ids = itertools.count()
        self._running: dict[int, Running] = {}
        self._process = os.getpid()

    def run(
        self,
        prompts: Sequence[Prompted],
        params: Params,
        adapter: str | Sequence[str],
        use_tqdm: bool,
        search: BeamSearch | None = None,
        pooling: Pooling | None = None,
    ) -> list[Completion]:
        """A completion for each of `prompts`, see `LLM.generate`.

        Raises:
            ValueError: as there, or the parameters do not go with a `search`.
        """
        params = SamplingParams() if params is None else params
        each = _one_each(params, SamplingParams, len(prompts), "sampling parameters")
        names = _one_each(adapter, str, len(prompts), "adapters")
        if search is not None and any(one.stops or one.n > 1 for one in each):
            raise ValueError("beam search does not go with stop: name stop_token_ids; nor with n: it has answers")
        completions = [self._answers(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        requests = [
            (made, self._request(made, name, images=prompt.images, beam_search=search, pooling=pooling))
            for prompt, several, name in zip(prompts, completions, names, strict=True)
            for made in several
        ]
        self._finish(self._submit(requests), use_tqdm)
        return [first for first, *_ in completions]

    def _finish(self, ids: Sequence[int], use_tqdm: bool) -> None:
        """Go on until all of `ids` have ended."""
        try:
            with tqdm(total=len(ids), unit="prompt", disable=not use_tqdm) as bar:
                while left := sum(id in self._running for id in ids):
                    if ended := len(ids) - left - bar.n:
                        bar.update(ended)
                    self._step()
                bar.update(len(ids) - bar.n)
        finally:
            self._give_up(ids)
        self._settle()

    def stream(self, prompt: Prompted, params: SamplingParams | None, adapter: str) -> Stream:
        """The text of one answer as it comes, see `LLM.stream`. Raises ValueError as there."""
        params = params or SamplingParams()
        if params.n != 1:
            raise ValueError(f"a stream has one answer, got n {params.n}")
        [made] = self._answers(prompt, params)
        ids = self._submit([(made, self._request(made, adapter, images=prompt.images))], streamed=True)
        running = self._running[ids[0]]
        return Stream(made, partial(self._advance, running, ids), partial(self._give_up, ids))

    def _advance(self, running: Running, ids: Sequence[int]) -> str | None:
        """The next piece of a text; None once there is no more."""
        while not (piece := running.new_text()):
            if ids[0] not in self._running:
                self._settle()
                return None
            self._step()
        return piece

    def _answers(self, prompt: Prompted, params: SamplingParams) -> list[Completion]:
        """As many as `params` ask for, which the first of them names."""
        if params.max_tokens == AS_MANY:
            room = self._engine.description.max_total_tokens - len(prompt.ids)
            params = dataclasses.replace(params, max_tokens=max(1, room))
        seeds = _seeds(params)
        several = [
            Completion(prompt.ids, dataclasses.replace(params, seed=seed), prompt=prompt.text, decode=self._token_text)
            for seed in seeds
        ]
        several[0].others = several[1:]
        return several

    def _request(self, made: Completion, adapter: str, **kind: Any) -> Request:
        return Request(next(self._ids), made.prompt_ids, made.params, adapter=adapter, **kind)

    def _submit(self, requests: Sequence[tuple[Completion, Request]], *, streamed: bool = False) -> list[int]:
        """Give the engine all of `requests`, or none where one of them cannot be; their ids."""
        self._refuse_other_process()
        for _, request in requests:
            self._engine.check(request)
        running = {request.id: Running(made, partial(self._detokenizer, made), streamed) for made, request in requests}
        for _, request in requests:
            self._engine.submit(request)
        self._running |= running
        return [*running]

    def _give_up(self, ids: Sequence[int]) -> None:
        """End what still runs of `ids`, as after an interruption: the next call must not find what is left."""
        for id in ids:
            if self._running.pop(id, None) is not None:
                self._engine.cancel(id)

    def _settle(self) -> None:
        """Where nothing is left to wait for, let the engine end what it has launched ahead."""
        while not self._running and not self._engine.idle:
            self._step()

    def _step(self) -> None:
        """Have the engine go on, with the requests of this call and of streams that are open."""
        self._refuse_other_process()
        if self._engine.idle:  # an adapter is read again, on another thread
            time.sleep(0.001)
        result = self._engine.step()
        for event in result.events if result else ():
            if (one := self._running.get(event.request_id)) is None:  # given up, or ended by a stop string
                continue
            one.add(event)
            if one.completion.finish_reason:
                del self._running[event.request_id]
                self._engine.cancel(event.request_id)  # the engine knows nothing of stop strings

    def _refuse_other_process(self) -> None:
        """A fork has none of JAX's threads: a step would wait for ever."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this LLM runs in process {self._process}, of which this one is a fork: make an LLM in each process, "
                'and start it with multiprocessing.get_context("spawn")'
            )

    def _detokenizer(self, completion: Completion) -> Detokenizer:
        behind_encoder = self._engine.description.decoder_start_token_id is not None  # the prompt gives no context
        context = [] if behind_encoder else completion.prompt_ids
        return Detokenizer(self._tokenizer, context, skip_special_tokens=completion.params.skip_special_tokens)

    def _token_text(self, id: int) -> str:
        return self._tokenizer.decode([id], skip_special_tokens=False)


def _one_each(given: T | Sequence[T], kind: type[T], count: int, what: str) -> Sequence[T]:
    each: Sequence[T] = [given] * count if isinstance(given, kind) else given  # type: ignore[assignment]
    if len(each) != count:
        raise ValueError(f"{count} prompts but {len(each)} {what}")
    return each


def _seeds(params: SamplingParams) -> list[int]:
    """One for each answer."""
    first = secrets.randbits(64) if params.seed is None else params.seed
    return [(first + number) % 2**64 for number in range(params.n)]
