"""The engine in this process, for notebooks and tests: `LLM(model).generate(prompts, SamplingParams(...))`.

from jaxengine.llm import LLM, SamplingParams
print(LLM().generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
"""

import dataclasses
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from convert.cache import cache_root
from convert.source import open_model
from jaxengine.compile_cache import enable_compile_cache
from jaxengine.engine import Engine
from jaxengine.options import EngineOptions
from jaxengine.params import SamplingParams
from jaxengine.sequence import FinishReason, Request, Token

__all__ = ["LLM", "Completion", "SamplingParams"]

Prompt = str | Sequence[int]


@dataclass
class Completion:
    """What one prompt became. `text` leaves out special tokens; `finish_reason` is "length", "eos", "stop_token", …"""

    prompt_ids: list[int]
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: list[Token] = field(default_factory=list)  # with `prompt_logprobs`
    text: str = ""
    finish_reason: str = ""
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
        self.tokenizer = Tokenizer.from_file(str(opened.directory / "tokenizer.json"))
        self.engine = Engine.load(opened, EngineOptions(**options))  # type: ignore[arg-type]
        self.ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete `prompts` (text, token ids, or a list of either) together; results in their order.

        `params` is one for all or one for each. A request without a seed gets a random one.

        Raises:
            ValueError: a prompt or parameter is out of range, before anything runs.
            RuntimeError: a request failed inside the engine.
        """
        batch = self._encode(prompts)
        each = _one_each(SamplingParams() if params is None else params, len(batch))
        requests = [
            Request(next(self.ids), prompt, _seeded(chosen)) for prompt, chosen in zip(batch, each, strict=True)
        ]
        for request in requests:
            self.engine.check(request)
        completions = {request.id: Completion(list(request.prompt)) for request in requests}
        for request in requests:
            self.engine.submit(request)
        try:
            while not self.engine.idle:
                self._step(completions)
        except BaseException:  # a request failed, or the user interrupted: the next call must not find what is left
            for request in requests:
                self.engine.cancel(request.id)
            raise
        return list(completions.values())

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        batch: Sequence[Prompt] = [prompts] if single else prompts  # type: ignore[list-item, assignment]
        return [self.tokenizer.encode(p).ids if isinstance(p, str) else list(p) for p in batch]

    def _step(self, completions: dict[int, Completion]) -> None:
        result = self.engine.step()
        for event in result.events if result else ():
            completion = completions.get(event.request_id)
            if completion is None:  # the end of one that an earlier call gave up
                continue
            completion.tokens += event.tokens
            if event.first:
                completion.prompt_tokens, completion.cached_tokens = event.prompt, event.cached_tokens
            if event.finish is FinishReason.ERROR:
                raise RuntimeError(event.error)
            if event.finish is not FinishReason.NOT_FINISHED:
                completion.finish_reason = event.finish.name.lower()
                completion.text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)


def _one_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    each = [params] * count if isinstance(params, SamplingParams) else params
    if len(each) != count:
        raise ValueError(f"{count} prompts but {len(each)} sampling parameters")
    return each


def _seeded(params: SamplingParams) -> SamplingParams:
    return params if params.seed is not None else dataclasses.replace(params, seed=secrets.randbits(64))
