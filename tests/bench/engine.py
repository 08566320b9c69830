"""Our engine and transformers' static-batch `generate`: same weights, prompts and machine, taking turns."""

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np
import torch

from convert.cache import cache_root
from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from tests.bench.transformers_twin import twin
from tests.roofline import step_cost, weight_bytes

PROMPT = 32  # tokens
COLUMNS = ("default model", "decode tok/s", "transformers", "ratio", "seen", "whole requests", "weights read GB/s")


def measure(options: EngineOptions, batches: tuple[int, ...], rounds: int, new_tokens: int) -> list[list[str]]:
    """Greedy, no prefix shared; one row a batch size. Decoding is what `new_tokens` take beyond one token."""
    enable_compile_cache(cache_root() / "compiled")
    torch.set_num_threads(os.cpu_count() or 1)
    model = open_model(None)
    engine = load_engine(model, options)
    engine.finish_compiling()
    reference = twin(model.source)
    contenders: list[tuple[Callable[..., None], Any]] = [(_ours, engine), (_theirs, reference)]
    rng = np.random.default_rng(0)
    rows = []
    for batch in batches:
        decode: list[tuple[float, float]] = []  # seconds beyond the first token, ours and theirs
        whole: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            prompts = rng.integers(100, model.source.spec.vocab_size, (batch, PROMPT))
            ours, theirs = (_seconds(run, subject, prompts, new_tokens) for run, subject in contenders)
            our_first, their_first = (_seconds(run, subject, prompts, 1) for run, subject in contenders)
            whole.append((ours, theirs))
            decode.append((ours - our_first, theirs - their_first))
        tokens = batch * (new_tokens - 1)
        rows.append(_row(engine, options.quantize, batch, tokens, decode[1:], whole[1:]))  # the first round warms up
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


def _theirs(model: Any, prompts: np.ndarray, new_tokens: int) -> None:
    ids = torch.from_numpy(prompts)
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )


def _row(
    engine: Engine, quantize: str | None, batch: int, tokens: int, decode: list[tuple[float, float]], whole: Any
) -> list[str]:
    ours, theirs = (tokens / median(seconds) for seconds in zip(*decode, strict=True))
    ratios = sorted(b / a for a, b in decode)
    spec, itemsize = engine.runner.shapes.spec, 4 if engine.description.dtype == "float32" else 2
    stored = " and ".join(filter(None, (engine.description.dtype, quantize)))
    return [
        f"{stored}, batch {batch}{_share(batch, spec, ours, itemsize, quantize)}",
        f"{ours:.1f}",
        f"{theirs:.1f}",
        f"{median(ratios):.2f}x",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        f"{median(b / a for a, b in whole):.2f}x",
        f"{ours / batch * weight_bytes(spec, itemsize, quantize) / 1e9:.1f}",
    ]


def _share(batch: int, spec: Any, rate: float, itemsize: int, quantize: str | None) -> str:
    """On a GPU, the share of what its bandwidth (a copy, measured here) would allow."""
    if jax.default_backend() == "cpu":
        return ""
    floor = step_cost(spec, batch, 1, PROMPT, itemsize, itemsize, quantize).bytes / _copy_bandwidth()
    return f", {rate / batch * floor:.0%} of the roofline"


def _copy_bandwidth(size: int = 1 << 30, repeats: int = 10) -> float:
    """Bytes per second read and written by a copy on the device."""
    array = jax.numpy.zeros(size // 4, jax.numpy.float32)
    copy = jax.jit(lambda a: a + 1)
    jax.block_until_ready(copy(array))
    return 2 * size / min(_seconds(lambda: jax.block_until_ready(copy(array))) for _ in range(repeats))
