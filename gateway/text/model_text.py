"""Everything about text the served model brings along: tokenizer, chat template, sampling defaults.

The engine reports the directory; it is read once per model, before the engine counts as ready.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from gateway.errors import TOO_LONG, Kind, RequestError
from gateway.text.detokenizer import Detokenizer
from gateway.text.model_files import find_template, read_json, special_tokens
from gateway.text.sampling_defaults import recommended
from gateway.text.template_renderer import Renderer
from gateway.text.tokenizer import Tokenizer, TokenSpan

TEMPLATE_CHARACTERS = 65_536  # that a chat template may add to what a request holds
TOKENIZER_CLASS = "PreTrainedTokenizerFast"  # transformers', of a tokenizer.json whose model does not name another
INLINE_CHARACTERS = 2048  # tokenised on the event loop: about 0.6 ms, where a hop to a thread takes 0.1

Side = Literal["left", "right"]
Cuttable = TypeVar("Cuttable", str, list[int])


def shortened(sequence: Cuttable, most: int, cut: Side) -> Cuttable:
    """At most `most` of `sequence`, which loses what it must at the side `cut`."""
    return sequence[-most:] if cut == "left" else sequence[:most]


class ModelText:
    """The text side of one model. `continues` is whether what it generates goes on where the prompt ends; behind an
    encoder it begins anew. `payload_limit` is that of a request's body, in bytes: short templates can write long texts.
    """

    def __init__(
        self,
        directory: Path,
        max_total_tokens: int,
        executor: ThreadPoolExecutor,
        config_path: Path | None = None,
        *,
        continues: bool = True,
        payload_limit: int,
    ) -> None:
        self.continues = continues
        self.tokenizer = Tokenizer.load(directory)
        can_fit = self.tokenizer.longest * max_total_tokens + 1024  # tokenising takes 300 bytes for each
        self.max_characters = min(can_fit, payload_limit + TEMPLATE_CHARACTERS)
        config = read_json(config_path or directory / "tokenizer_config.json")
        self.defaults = recommended(read_json(directory / "generation_config.json"))
        template = find_template(directory, config, chosen=config_path is not None)
        self.template, self.special_tokens = template, special_tokens(directory, config)
        self.tokenizer_class = str(config.get("tokenizer_class") or TOKENIZER_CLASS)
        self._renderer = Renderer(template, self.special_tokens, self.max_characters) if template else None
        self._guest = Renderer(None, self.special_tokens, self.max_characters)  # of requests
        self.knows_developer = template is not None and "developer" in template
        self._executor = executor

    async def encode(self, text: str, *, add_special_tokens: bool, field: str, cut: Side | None = None) -> list[int]:
        """Token ids of `text`; where the caller will shorten them, of what may be left when it is `cut` at that side.

        Raises RequestError when it is too long to fit the context.
        """
        if cut is not None:
            text = shortened(text, self.max_characters, cut)
        self._check_length(text, field)
        if len(text) <= INLINE_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        encode = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._executor, encode)

    async def spans(self, text: str, *, add_special_tokens: bool, field: str) -> list[TokenSpan]:
        """Tokens of `text` with their byte ranges. Raises as `encode`."""
        self._check_length(text, field)
        spans = partial(self.tokenizer.spans, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._executor, spans)

    async def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`."""
        decode = partial(self.tokenizer.decode_long, ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._executor, decode)

    def _check_length(self, text: str, field: str) -> None:
        if len(text) > self.max_characters:
            raise RequestError(
                Kind.CONTEXT_LENGTH,
                f"{TOO_LONG}: {field} has {len(text)} characters, at most {self.max_characters} can fit",
                param=field,
            )

    async def render(self, *, template: str | None = None, **chat: Any) -> str:
        """The prompt for a chat: `ChatTemplate.render`, of the model's own template unless another is given.

        Raises:
            RequestError: of kind TEMPLATE, or CONTEXT_LENGTH where it writes more than can fit.
        """
        if template is not None:
            return await self._guest.render(source=template, **chat)
        if self._renderer is None:
            raise RequestError(Kind.TEMPLATE, "the model has no chat template", param="messages")
        return await self._renderer.render(**chat)

    def detokenizer(self, prompt: list[int], *, skip_special_tokens: bool) -> Detokenizer:
        context = prompt if self.continues else []
        return Detokenizer(self.tokenizer, context, skip_special_tokens=skip_special_tokens)

    async def close(self) -> None:
        await self._guest.close()
        if self._renderer is not None:
            await self._renderer.close()
