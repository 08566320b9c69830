"""`serve`: the application over the fake engine, in this process, for the tests of routes."""

import contextlib
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.app import create_app
from gateway.config.options import Options
from gateway.images.pictures import Pictures
from gateway.observability.metrics import Metrics
from gateway.request.admission import Admission
from gateway.request.gateway_state import Gateway
from gateway.request.shared_counters import SharedCounters
from gateway.text.loader import ModelTextLoader
from tests.engine_mock import EOS, MockOptions
from tests.gateway.fake_engine_client import FakeEngineClient
from tests.gateway.images.models import directory as seeing_directory
from tests.gateway.seeing import IMAGE, PATCH_VALUES, ToyHelper
from tests.gateway.toys import TEMPLATE, byte_level, write_model

HELLO = [*byte_level().encode("hello world", add_special_tokens=False).ids, EOS]  # five tokens and the end


@dataclass
class ServedApp:
    """The application, its gateway and engine, and an HTTP client without a socket between them."""

    asgi: FastAPI
    gateway: Gateway
    engine: FakeEngineClient
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any = None, /, **fields: Any) -> httpx.Response:
        return await self.http.post(path, json=fields if body is None else body)

    async def raw(self, path: str, content: bytes, content_type: str = "application/json") -> httpx.Response:
        return await self.http.post(path, content=content, headers={"content-type": content_type})


@contextlib.asynccontextmanager
async def serve(
    script: list[int] | None = None,
    *,
    max_total_tokens: int = 64,
    decoder_start_token_id: int | None = None,
    template: str | None = TEMPLATE,
    generation_config: dict[str, Any] | None = None,
    adapters: tuple[str, ...] | None = None,
    tokens_per_step: int = 1,
    pooling: str = "last",
    logits: bool = True,
    sees: str = "",
    max_image_patches: int = 4096,
    **options: Any,
) -> AsyncIterator[ServedApp]:
    """A gateway whose engine answers everything with `script` (default "hello world" and EOS), over and over.

    With `sees`, a recipe of `tests.tiny_vision`, the model is that one. The patches of a picture are all one number.

    With `adapters`, entries of `--lora-adapters`, the engine serves adapters; these it has at its start.
    """
    with tempfile.TemporaryDirectory() as directory:
        model_dir = write_model(Path(directory), template=template, **(generation_config or {}))
        if sees:
            model_dir = seeing_directory(sees)
        chosen = HELLO if script is None else script
        mock = MockOptions(
            model_dir=model_dir,
            max_total_tokens=max_total_tokens,
            decoder_start_token_id=decoder_start_token_id,
            tokens_per_step=tokens_per_step,
            script=tuple(chosen),
            max_loras=0 if adapters is None else 4,
            lora_adapters=adapters or (),
            pooling=pooling,
            logits=logits,
            image_token_id=IMAGE if sees else None,
            patch_values=PATCH_VALUES,
            max_image_patches=max_image_patches,
        )
        engine = FakeEngineClient(mock)
        chosen_options = Options(**options)
        text_loader = ModelTextLoader(1, payload_limit=chosen_options.payload_limit)
        assert engine.description is not None
        admission = Admission(16, 10_000, SharedCounters(len(chosen_options.keys)))
        model_name = next(iter(chosen_options.served_model_name), "")
        gateway = Gateway(chosen_options, engine, admission, Metrics(model_name=model_name), text_loader)
        if sees:
            gateway.pictures = Pictures(chosen_options, ToyHelper)
        await gateway.prepare(engine.description)
        app = create_app(gateway)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield ServedApp(app, gateway, engine, http)
        await gateway.close()


def events(response: httpx.Response) -> list[Any]:
    """The JSON of every event of a stream, `[DONE]` as itself. Fails on any other framing."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == "", "a stream ends with an empty line"
    assert all(block.startswith("data: ") for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


class Callers:
    """Records which threads call a function; `users` are the modules that have imported it by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *users: ModuleType) -> None:
        self.threads: list[threading.Thread] = []

        def spy(*given: Any) -> Any:
            self.threads.append(threading.current_thread())
            return function(*given)

        for user in users:
            monkeypatch.setattr(user, function.__name__, spy)

    @property
    def beside_the_event_loop(self) -> bool:
        """Whether the function was called, and never on the event loop's thread, which in tests is the main one."""
        return bool(self.threads) and threading.main_thread() not in self.threads
