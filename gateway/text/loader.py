"""Loads the text side of the model that an engine serves: once per model, before the engine counts as ready."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb


class UnusableModel(Exception):
    """The text side of a model can't be loaded. The message names the file."""


class ModelTextLoader:
    """`prepare` loads the text side of the engine's model, `current` is what routes use."""

    def __init__(self, workers: int, config_path: Path | None = None, *, payload_limit: int) -> None:
        self._payload_limit = payload_limit
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        self._config_path = config_path
        self._loaded: tuple[tuple[str, int], ModelText] | None = None
        self._loading = asyncio.Lock()  # several engines may become ready at once

    @property
    def current(self) -> ModelText | None:
        return self._loaded[1] if self._loaded else None

    async def prepare(self, description: pb.Description) -> None:
        """Load what `description` names, unless it is loaded. Raises UnusableModel."""
        async with self._loading:
            await self._prepare(description)

    async def _prepare(self, description: pb.Description) -> None:
        key = (description.model_dir, description.max_total_tokens)
        continues = not description.HasField("decoder_start_token_id")
        if self._loaded is not None and self._loaded[0] == key:
            return
        directory = Path(description.model_dir)
        load = partial(ModelText, directory, description.max_total_tokens, self._executor, self._config_path)
        try:
            model = await asyncio.to_thread(load, continues=continues, payload_limit=self._payload_limit)
        except (OSError, ValueError) as error:
            raise UnusableModel(str(error)) from error
        await self.close()
        self._loaded = key, model

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded[1].close()
            self._loaded = None
