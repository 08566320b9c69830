"""The text side of a model, read from its directory: tokenizer, chat template and sampling defaults."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from gateway.errors import TOO_LONG, Kind, RequestError
from gateway.text.detokenizer import Detokenizer
from gateway.text.model_files import find_template, read_json, special_tokens
from gateway.text.sampling_defaults import recommended
from gateway.text.template_renderer import TemplateRenderer
from gateway.text.token_search import TokenSearch
from gateway.text.tokenizer import Tokenizer, TokenSpan

TEMPLATE_CHARACTERS = 65_536  # that a chat template may write besides those of the request
TOKENIZER_CLASS = "PreTrainedTokenizerFast"  # transformers' class for a tokenizer.json, if the model names no other
INLINE_CHARACTERS = 2048  # are tokenised on the event loop in 0.6 ms; a longer text is worth the 0.1 ms of a thread

Side = Literal["left", "right"]
Text = TypeVar("Text", str, list[int])


def truncate(text: Text, length: int, cut: Side) -> Text:
    """At most `length` characters or ids of `text`, which is `cut` at that side."""
    return text[-length:] if cut == "left" else text[:length]


class ModelText:
    """The text side of one model.

    Args:
        directory: of the model.
        max_total_tokens: the length of its context.
        executor: threads that tokenise long texts.
        config_path: a tokenizer_config.json instead of the directory's.
        continues: whether generated text continues the prompt; behind an encoder it begins anew.
        payload_limit: bytes of a request's body. It bounds rendered chats, as a short template can write a long text.

    Raises:
        OSError, ValueError: a file is missing or cannot be read.
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
        self.token_search = TokenSearch(self.tokenizer)
        can_fit = self.tokenizer.longest * max_total_tokens + 1024  # tokenising takes 300 bytes for each
        self.max_characters = min(can_fit, payload_limit + TEMPLATE_CHARACTERS)
        config = read_json(config_path or directory / "tokenizer_config.json")
        self.defaults = recommended(read_json(directory / "generation_config.json"))
        template = find_template(directory, config, chosen=config_path is not None)
        self.template, self.special_tokens = template, special_tokens(directory, config)
        self.tokenizer_class = str(config.get("tokenizer_class") or TOKENIZER_CLASS)
        self._renderer = TemplateRenderer(template, self.special_tokens, self.max_characters) if template else None
        self._request_renderer = TemplateRenderer(None, self.special_tokens, self.max_characters)
        self.knows_developer = template is not None and "developer" in template
        self.executor = executor

    async def encode(self, text: str, *, add_special_tokens: bool, field: str, cut: Side | None = None) -> list[int]:
        """Token ids of `text`. With `cut` the caller truncates them at that side, so a text that is too long is
        truncated first, to what can be left of it.

        Raises:
            RequestError: the text is too long to fit the context; `field` is its name in the request.
        """
        if cut is not None:
            text = truncate(text, self.max_characters, cut)
        self._check_length(text, field)
        if len(text) <= INLINE_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        encode = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self.executor, encode)

    async def spans(self, text: str, *, add_special_tokens: bool, field: str) -> list[TokenSpan]:
        """Tokens of `text` with their byte ranges. Raises as `encode`."""
        self._check_length(text, field)
        spans = partial(self.tokenizer.spans, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self.executor, spans)

    async def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`."""
        decode = partial(self.tokenizer.decode_long, ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self.executor, decode)

    def _check_length(self, text: str, field: str) -> None:
        if len(text) > self.max_characters:
            raise RequestError(
                Kind.CONTEXT_LENGTH,
                f"{TOO_LONG}: {field} has {len(text)} characters, at most {self.max_characters} can fit",
                param=field,
            )

    async def render(self, *, template: str | None = None, **chat: Any) -> str:
        """The prompt for a chat: `ChatTemplate.render` of the model's template, or of `template` if one is given.

        Raises:
            RequestError: of kind TEMPLATE, or CONTEXT_LENGTH if the template writes more than can fit.
        """
        if template is not None:
            return await self._request_renderer.render(source=template, **chat)
        if self._renderer is None:
            raise RequestError(Kind.TEMPLATE, "the model has no chat template", param="messages")
        return await self._renderer.render(**chat)

    def detokenizer(
        self, prompt: list[int], *, skip_special_tokens: bool, visible: frozenset[int] = frozenset()
    ) -> Detokenizer:
        context = prompt if self.continues else []
        return Detokenizer(self.tokenizer, context, skip_special_tokens=skip_special_tokens, visible=visible)

    async def close(self) -> None:
        await self._request_renderer.close()
        if self._renderer is not None:
            await self._renderer.close()
