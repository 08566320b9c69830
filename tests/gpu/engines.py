"""Engines over random weights, and the one client that the measurements drive them with."""

import gc
import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh

from jaxengine.architecture.adaptation import AdapterReader
from jaxengine.architecture.drafter import DrafterSource
from jaxengine.architecture.model import ModelSpec
from jaxengine.cache.limits import Limits
from jaxengine.device import DeviceTraits
from jaxengine.engine.engine import Engine
from jaxengine.executor import compiler_options
from jaxengine.grammar.grammar import Grammar
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from tests.gpu.scale import Scale
from tests.gpu.weights import RandomSource, random_parameters

NOWHERE = Path("/nonexistent")
LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class RandomModel:
    """What `load_engine` takes for an opened checkpoint."""

    source: RandomSource
    model_id: str = "random"
    revision: str = "0"
    eos_token_ids: tuple[int, ...] = ()
    quantization: str | None = None
    directory: Path = NOWHERE  # it has no tokenizer
    adapters: AdapterReader | None = None
    drafter: DrafterSource | None = None
    pooling: str = "last"


def measured_engine(
    scale: Scale,
    *,
    eos_token_ids: tuple[int, ...] = (),
    directory: Path = NOWHERE,
    adapters: AdapterReader | None = None,
    limits: Limits | None = None,
    **options: object,
) -> Engine:
    """An engine of `scale`'s model and buckets, or other `limits`, whose weights were never on the host.

    A measurement wants no checkpoint and no bucket that it does not measure; the rest is the product's own.
    """
    chosen = EngineOptions(dtype=scale.dtype, **options)  # type: ignore[arg-type]
    source = RandomSource(scale.spec, scale.dtype)
    model = RandomModel(source, eos_token_ids=eos_token_ids, directory=directory, adapters=adapters)
    engine = load_engine(model, chosen, limits=limits or scale.limits, load=drawn_on_devices)
    gc.collect()
    gc.freeze()  # as the service does: a collection of all that loading made took 178 ms of one step
    return engine


@contextmanager
def measured_client(scale: Scale, **options: Any) -> Iterator["Client"]:
    """A client of `measured_engine`, everything compiled. Afterwards the device's memory is free, whoever still refers
    to the engine: the next one takes nearly all there is.
    """
    engine = measured_engine(scale, **options)
    try:
        engine.finish_compiling()
        yield Client(engine)
    finally:
        engine.close()
        for array in jax.live_arrays():
            if array.nbytes >= LARGE:
                array.delete()


def compiled_with(options: dict[str, Any]) -> AbstractContextManager[object]:
    """Inside of it this platform's engines are compiled with `options` besides their own."""
    platform = jax.devices()[0].platform
    ours = compiler_options.COMPILER_OPTIONS.get(platform, {})
    return mock.patch.dict(compiler_options.COMPILER_OPTIONS, {platform: {**ours, **options}})


def drawn_on_devices(
    source: RandomSource, mesh: Mesh, dtype: str, device: DeviceTraits, _: object, quantize: str | None
) -> dict[str, Any]:
    return random_parameters(source.spec, mesh, dtype, device, quantize)


def small_engine(spec: ModelSpec, **options: object) -> Engine:
    """An engine of the same weights on every platform, with one decode and one mixed bucket, for comparisons."""
    engine = load_engine(RandomModel(RandomSource(spec)), EngineOptions(**options))  # type: ignore[arg-type]
    engine.close()
    return engine


class Client:
    """Asks one engine for random work, in this thread. Every prompt differs, so none is found in the prefix cache."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.numbers = itertools.count()

    def submit(
        self,
        count: int,
        length: int,
        new: int,
        grammar: Grammar | None = None,
        adapter: str = "",
        beams: BeamSearch | None = None,
        **sampling: Any,
    ) -> list[int]:
        """`count` requests of `length` random tokens for exactly `new` more, or as many as the grammar lets them have,
        greedy unless `sampling` says otherwise; their ids.
        """
        greedy = {"temperature": 0, "seed": 0, "max_tokens": new, "ignore_eos": grammar is None}
        params = SamplingParams(**{**greedy, **sampling})
        ids = [next(self.numbers) for _ in range(count)]
        for number in ids:
            prompt = np.random.default_rng(number).integers(0, self.engine.description.vocab_size, length)
            asked = {"grammar": grammar, "adapter": adapter, "beam_search": beams}
            self.engine.submit(Request(number, prompt.tolist(), params, **asked))  # type: ignore[arg-type]
        return ids

    def step(self) -> list[Event]:
        """One step; a request that failed in it is an error here."""
        result = self.engine.step()
        events = result.events if result else []
        for event in events:
            if event.finish is FinishReason.ERROR:
                raise RuntimeError(f"request {event.request_id} failed: {event.error}")
        return events

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.engine.requests.live or not self.engine.idle:
            self.step()

    def cancel(self, ids: Iterable[int]) -> None:
        for number in ids:
            self.engine.cancel(number)
        self.drain()
