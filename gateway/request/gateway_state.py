"""`Gateway`: what every route may reach, as one value on the application. No module holds state of its own."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from fastapi import Request

from gateway.config.options import Options
from gateway.engine.interface import Engine, Operations
from gateway.images.pictures import Pictures
from gateway.observability.feed.feed import Feed
from gateway.observability.metrics import Metrics
from gateway.observability.request_stats import RequestStats
from gateway.parsing.formats import Formats, formats_of
from gateway.request.admission import Admission
from gateway.request.keys import Keys
from gateway.request.named_generations import NamedGenerations
from gateway.request.response_store import ResponseStore
from gateway.text.loader import ModelTextLoader
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.telemetry.tracing import Tracing


@dataclass
class Gateway:
    options: Options
    engine: Engine
    admission: Admission
    metrics: Metrics
    text_loader: ModelTextLoader
    alive: bool = True  # False once the engine cannot be restarted any more
    draining: bool = False  # running requests finish, new ones are turned away
    operations: Operations | None = None  # of the launcher's process alone
    tracing: Tracing = field(default_factory=Tracing)
    secret: bytes = b""  # of this boot, for `Keys`
    one_with_logits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))  # each is up to 64 MiB
    shared: Path | None = None  # directory of what all HTTP processes share, if there are several
    last_answer: RequestStats | None = None  # of this process
    keys: Keys = field(init=False)
    responses: ResponseStore = field(init=False)
    named_generations: NamedGenerations = field(init=False)
    feed: Feed = field(init=False)
    pictures: Pictures = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keys(self.options.keys, share_cache=self.options.share_prefix_cache, secret=self.secret)
        most, most_bytes = self.options.max_stored_responses, self.options.max_stored_response_bytes
        self.responses = ResponseStore(most, most_bytes, self.shared)
        self.named_generations = NamedGenerations(self.shared)
        self.pictures = Pictures(self.options)
        self.feed = Feed(self.metrics, lambda: {each.index: each.state for each in self.engine.replicas})
        self._formats: tuple[ModelText, Formats] | None = None  # of the model that was asked for last

    async def prepare(self, description: pb.Description) -> None:
        """Load what is needed for the model that an engine describes, unless it is loaded. Raises UnusableModel."""
        await self.text_loader.prepare(description)
        if (model := self.text_loader.current) is not None:
            await self.pictures.prepare(description, model)

    async def close(self) -> None:
        """End what `prepare` has begun, and forget what is stored."""
        await self.pictures.close()
        await self.text_loader.close()
        self.responses.close()

    def formats(self, model: ModelText) -> Formats:
        """How `model`, the one being served, writes calls and reasoning."""
        if self._formats is None or self._formats[0] is not model:
            tokenizer = model.tokenizer
            known = formats_of(model.template, lambda token: tokenizer.special_id(token) is not None, self.options)
            self._formats = model, known
        return self._formats[1]

    @property
    def ready(self) -> bool:
        """Whether this process can serve."""
        return self.alive and not self.draining and self.engine.ready

    @property
    def all_ready(self) -> bool:
        """Whether every HTTP process of this server can serve."""
        return self.ready and self.admission.counters.all_ready

    @property
    def payload_limit(self) -> int:
        """Bytes of the largest body: images need more than text."""
        raised = self.options.image_payload_limit if self.pictures.sight is not None else 0
        return max(self.options.payload_limit, raised)

    @property
    def max_input_tokens(self) -> int:
        """Tokens of the longest prompt; 0 before the engine has said what it can hold."""
        description = self.engine.description
        if description is None or not description.max_total_tokens:
            return 0
        longest = description.max_total_tokens - 1
        return min(longest, self.options.max_input_tokens or longest)


async def gateway_of(request: Request) -> Gateway:
    """The dependency that routes declare: `gateway: Gateway = Depends(gateway_of)`.

    It is a coroutine, as every dependency here: FastAPI runs plain functions in a thread, which takes 0.1 ms each.
    """
    return gateway_in(request)


def gateway_in(request: Request) -> Gateway:
    """The gateway of the application that serves `request`."""
    return cast(Gateway, request.app.state.gateway)
