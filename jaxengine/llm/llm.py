"""`LLM`: a model with its engine, whose loop runs while a call waits for it.

The engine knows token ids only. Text, stop strings and chat templates are read and written by `gateway.text`, the code
of the server.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from convert.cache import cache_root
from convert.source import open_model
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.llm.chat import Chat, chats_of, check_chat, rendered, template_of
from jaxengine.llm.completion import Completion, SamplingParams, Stream
from jaxengine.llm.load_bars import LoadBars
from jaxengine.llm.loop import Loop, Params, Prompted
from jaxengine.llm.options import engine_options
from jaxengine.llm.pictures import Pictures, vllm_prompt, without_pictures
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.pooling import pooling_named
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.interface import AdapterRefused
from jaxengine.startup.build import load_engine

Prompt = str | Sequence[int] | Mapping[str, Any]
Vectors = np.ndarray[Any, np.dtype[np.float32]]

ROUNDING = 1024  # characters that a prompt may have beyond those that surely fit


class LLM:
    """A model, loaded and compiled, in this process.

    Args:
        model: a hub id, a directory or a `.gguf` file; the small default model, which is fetched once, if not given.
        revision: branch, tag or commit on the hub.
        merge_adapter: a PEFT adapter that is merged with the model while it is loaded.
        lora_adapters: PEFT adapters beside the model, by the names that `generate` and `chat` take. With `enable_lora`
            more can come later, see `load_adapter`.
        language_model_only: of a model that takes pictures or sound, the text part alone.
        use_tqdm_on_load: show bars while weights are loaded and steps compiled.
        options: as `EngineOptions` has them, such as `dtype`, `quantize`, `max_total_tokens`; the names that vLLM has
            for the same things count too, such as `max_model_len`.

    Raises:
        CheckpointError: the model or an adapter cannot be found or read.
        TypeError: there is no such option.
        ValueError: the options contradict the model or the devices.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        revision: str | None = None,
        *,
        merge_adapter: str | Path | None = None,
        lora_adapters: Mapping[str, str | Path] | None = None,
        language_model_only: bool = False,
        use_tqdm_on_load: bool = True,
        **options: object,
    ) -> None:
        enable_compile_cache(compile_cache_in(cache_root()))
        settings = engine_options(options)
        drafter = settings.speculation.model if settings.speculation else None
        opened = open_model(
            _as_text(model),
            revision,
            adapter=_as_text(merge_adapter),
            drafter=drafter,
            language_model_only=language_model_only,
        )
        self.directory = opened.directory
        self.tokenizer = Tokenizer.load(opened.directory)
        adapters = [NamedAdapter(name, str(path)) for name, path in (lora_adapters or {}).items()]
        with LoadBars(shown=use_tqdm_on_load) as bars:
            self.engine = load_engine(opened, settings, bars.show, adapters=adapters)
        self._loop = Loop(self.engine, self.tokenizer)

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
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str] = "",
    ) -> list[Completion]:
        """Complete `prompts` (text, token ids, or a list of either) together; results in their order.

        A prompt for a model that sees may be a dictionary, as vLLM's: `{"prompt": text, "multi_modal_data": {"image":
        …}}` with one picture or several, each Pillow's, a file's bytes or path, or a `data:` URL. The text spells what
        stands for each of them, or else they stand in front of it.

        Args:
            sampling_params: one for all or one for each.
            use_tqdm: show a bar that counts prompts.
            adapter: the name of the adapter that answers, one for all or one for each; "" is the model itself.

        A request without a seed gets a random one. One that fails inside the engine ends with its `error`, and takes
        nothing from the others.

        Raises:
            ValueError: a prompt or parameter is out of range, before anything runs.
        """
        return self._loop.run(self._encode(prompts), sampling_params, adapter, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, adapter: str = "") -> Stream:
        """Complete one prompt, and give its text piece by piece, as far as no stop string may have begun in it.

        for piece in llm.stream("Once upon a time"):
            print(piece, end="", flush=True)

        Other calls may come between two pieces. The stream's `completion` has ids, logprobs and, at the end, the reason
        of its end.

        Raises:
            ValueError: as `generate`; or `n` is not 1.
        """
        return self._loop.stream(self._prompted(prompt), sampling_params, adapter)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        search: BeamSearch,
        sampling_params: Params = None,
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
        searches = self._loop.run(self._encode(prompts), params, adapter, use_tqdm, search)
        return [each.beams or [each] for each in searches]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        adapter: str | Sequence[str] = "",
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> Vectors:
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
        made = self._loop.run(self._encode(prompts), params, adapter, use_tqdm, pooling=pooling)
        if failed := [each.error for each in made if not each.embedding]:
            raise RuntimeError(failed[0])
        if not made:
            return np.zeros((0, self.engine.description.hidden_size), np.float32)
        vectors = np.stack([np.frombuffer(each.embedding, "<f4") for each in made])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors

    def encode(self, prompts: Prompt | Sequence[Prompt], **how: Any) -> Vectors:
        """`embed` by the name that sentence-transformers and vLLM have for it."""
        return self.embed(prompts, **how)

    def chat(
        self,
        messages: Chat | Sequence[Chat],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str] = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        **how: Any,
    ) -> list[Completion]:
        """The assistant's next message in a chat, or in several; as `generate` otherwise.

        Args:
            messages: as OpenAI's: `[{"role": "user", "content": "…"}]`, calls of tools and their results too. For a
                model that sees, content may be a list of texts and pictures (see `generate`), or of OpenAI's parts.
            tools: functions that the model may call, as OpenAI's: `{"type": "function", "function": {…}}`. They are
                told by the model's template, or in words where it has no place for them. A call comes as text, in the
                model's own notation; the server takes it apart.
            how: `add_generation_prompt` (True), `continue_final_message`, which has the model go on with the last
                message and needs the former to be False, `chat_template`, a source in place of the model's, and
                `chat_template_kwargs`, what else the template reads.

        Raises:
            ValueError: as `generate`; or the model has no chat template, or its template refuses the messages.
            TypeError: `how` has another name.
        """
        prompts = [self._prompt_of(chat, tools, **how) for chat in chats_of(messages)]
        return self._loop.run(prompts, sampling_params, adapter, use_tqdm)

    def stream_chat(
        self,
        messages: Chat,
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        **how: Any,
    ) -> Stream:
        """The assistant's next message piece by piece: `stream` of what `chat` would answer, with its arguments.

        Raises:
            ValueError, TypeError: as `chat`.
        """
        return self._loop.stream(self._prompt_of(messages, tools, **how), sampling_params, adapter)

    @property
    def _can_fit(self) -> int:
        """Characters of the longest prompt."""
        return self.tokenizer.longest * self.engine.description.max_total_tokens + ROUNDING

    @cached_property
    def _template(self) -> ChatTemplate:
        return template_of(self.directory, self._can_fit)

    def _prompt_of(
        self,
        chat: Chat,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompted:
        """What the model's template makes of `chat`; the arguments are those of `LLM.chat`."""
        check_chat(chat)
        if add_generation_prompt and continue_final_message:
            raise ValueError("continue_final_message needs add_generation_prompt=False")
        source = chat_template
        chat, pictures = without_pictures(chat, self._sight)
        text = rendered(
            self._template if source is None else template_of(self.directory, self._can_fit, source),
            chat,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=[dict(tool) for tool in tools] if tools else None,
            variables=dict(chat_template_kwargs or {}),
        )
        if self._sight is not None:
            return self._sight.chat_prompt(text, pictures)
        return Prompted(self.tokenizer.encode(text, add_special_tokens=False), text)

    @cached_property
    def _sight(self) -> Pictures | None:
        """None if the model does not see."""
        description = self.engine.description
        return None if description.image_token_id is None else Pictures(self.directory, self.tokenizer, description)

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[Prompted]:
        single = isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], Integral))
        batch: Sequence[Prompt] = [prompts] if single else prompts  # type: ignore[list-item, assignment]
        return [self._prompted(prompt) for prompt in batch]

    def _prompted(self, prompt: Prompt) -> Prompted:
        if isinstance(prompt, Mapping):
            text, pictures = vllm_prompt(prompt, self._sight)
            return self._sight.prompt(text, pictures) if self._sight and pictures else self._prompted(text)
        if isinstance(prompt, str):
            return Prompted(self.tokenizer.encode(prompt, add_special_tokens=True), prompt)
        try:
            return Prompted([*map(operator.index, prompt)], None)
        except TypeError as error:
            raise ValueError(f"a prompt is a text or a list of token ids, got {prompt!r}") from error


def _as_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
