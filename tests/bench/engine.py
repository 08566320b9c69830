"""Our engine and a peer: same weights, prompts and machine, taking turns."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import numpy as np

from convert.cache import cache_root
from convert.source import open_model
from jaxengine.capacity.roofline import step_cost, weight_bytes
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from jaxengine.weights.quantization import chosen_formats
from tests.bench.peers import Peer, peer

PROMPT = 32  # tokens, where decoding is measured


@dataclass(frozen=True)
class Contenders:
    """Our engine, every bucket compiled, and a peer with the same weights."""

    engine: Engine
    peer: Peer
    quantize: str | None

    @classmethod
    @contextmanager
    def load(cls, options: EngineOptions, peer_name: str, batch: int, tokens: int) -> Iterator["Contenders"]:
        """For batches of up to `batch` requests with `tokens` each."""
        enable_compile_cache(compile_cache_in(cache_root()))
        model = open_model(None)
        engine = load_engine(model, options)
        engine.finish_compiling()
        with peer(peer_name, model, batch, tokens) as loaded:
            yield cls(engine, loaded, options.quantize)

    @property
    def decode_columns(self) -> tuple[str, ...]:
        return ("default model", "decode tok/s", self.peer.name, "ratio", "seen", "whole requests", "weights GB/s")

    @property
    def prefill_columns(self) -> tuple[str, ...]:
        return ("default model", "prefill tok/s", self.peer.name, "ratio", "seen", "GFLOP/s")

    @property
    def spec(self) -> Any:
        return self.engine.runner.shapes.spec

    @property
    def stored(self) -> str:
        return " and ".join(filter(None, (self.engine.description.dtype, self.quantize)))

    @property
    def itemsize(self) -> int:
        return 4 if self.engine.description.dtype == "float32" else 2

    def seconds(self, prompts: np.ndarray, new_tokens: int) -> tuple[float, float]:
        """Ours and theirs, one after the other. Greedy; ours shares no prefix."""
        return _seconds(_ours, self.engine, prompts, new_tokens), _seconds(self.peer.generate, prompts, new_tokens)


def decode(contenders: Contenders, batches: Sequence[int], rounds: int, new_tokens: int) -> list[list[str]]:
    """One row a batch size. Decoding is what `new_tokens` take beyond one token."""
    chance, rows = np.random.default_rng(0), []
    for batch in batches:
        beyond: list[tuple[float, float]] = []  # seconds beyond the first token, ours and theirs
        whole: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            prompts = chance.integers(100, contenders.spec.vocab_size, (batch, PROMPT))
            ours, theirs = contenders.seconds(prompts, new_tokens)
            our_first, their_first = contenders.seconds(prompts, 1)
            whole.append((ours, theirs))
            beyond.append((ours - our_first, theirs - their_first))
        rows.append(_decode_row(contenders, batch, batch * (new_tokens - 1), beyond[1:], whole[1:]))  # the first warms
    return rows


def prefill(contenders: Contenders, lengths: Sequence[int], rounds: int) -> list[list[str]]:
    """One row a prompt length, of a lone request for one token: the whole prompt, and one row of the head."""
    chance, rows = np.random.default_rng(0), []
    for length in lengths:
        prompts = (chance.integers(100, contenders.spec.vocab_size, (1, length)) for _ in range(rounds + 1))
        seconds = [contenders.seconds(prompt, 1) for prompt in prompts]
        rows.append(_prefill_row(contenders, length, seconds[1:]))  # the first round warms up
    return rows


def _seconds(run: Callable[..., None], *arguments: Any) -> float:
    began = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - began


def _ours(engine: Engine, prompts: np.ndarray, new_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, seed=0)
    for i, prompt in enumerate(prompts):
        engine.submit(Request(i, prompt.tolist(), params))
    while not engine.idle:
        engine.step()


def _decode_row(
    contenders: Contenders, batch: int, tokens: int, beyond: list[tuple[float, float]], whole: list[tuple[float, float]]
) -> list[str]:
    spec, itemsize, quantize = contenders.spec, contenders.itemsize, contenders.quantize
    ours = tokens / median(seconds for seconds, _ in beyond)
    return [
        f"{contenders.stored}, batch {batch}{_share(batch, spec, ours, itemsize, quantize)}",
        *_compared(tokens, beyond),
        f"{median(b / a for a, b in whole):.2f}x",
        f"{ours / batch * weight_bytes(spec, itemsize, chosen_formats(spec, quantize)) / 1e9:.1f}",
    ]


def _prefill_row(contenders: Contenders, length: int, seconds: list[tuple[float, float]]) -> list[str]:
    operations = step_cost(contenders.spec, 1, length, 0).operations
    return [
        f"{contenders.stored}, a prompt of {length} tokens",
        *_compared(length, seconds),
        f"{operations / median(ours for ours, _ in seconds) / 1e9:.0f}",
    ]


def _compared(tokens: int, seconds: list[tuple[float, float]]) -> list[str]:
    """Our rate and theirs; the median of the ratios within a round, and the least and the largest of them."""
    ours, theirs = (tokens / median(each) for each in zip(*seconds, strict=True))
    ratios = sorted(b / a for a, b in seconds)
    return [f"{ours:.1f}", f"{theirs:.1f}", f"{median(ratios):.2f}x", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]


def _share(batch: int, spec: Any, rate: float, itemsize: int, quantize: str | None) -> str:
    """On a GPU, the share of what its bandwidth (a copy, measured here) would allow."""
    if jax.default_backend() == "cpu":
        return ""
    floor = (
        step_cost(spec, batch, 1, PROMPT, itemsize, itemsize, chosen_formats(spec, quantize)).bytes / _copy_bandwidth()
    )
    return f", {rate / batch * floor:.0%} of the roofline"


def _copy_bandwidth(size: int = 1 << 30, repeats: int = 10) -> float:
    """Bytes per second read and written by a copy on the device."""
    array = jax.numpy.zeros(size // 4, jax.numpy.float32)
    copy = jax.jit(lambda a: a + 1)
    jax.block_until_ready(copy(array))
    return 2 * size / min(_seconds(lambda: jax.block_until_ready(copy(array))) for _ in range(repeats))
