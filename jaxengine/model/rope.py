"""Rotary position embeddings: cos and sin tables of each kind. The rotation itself is part of `jaxengine/ops`.

Formulas: default Su et al. 2021 (arXiv 2104.09864); linear Chen et al. 2023 (2306.15595); dynamic NTK, as in
transformers' `modeling_rope_utils`; llama3 and proportional likewise; yarn Peng et al. 2023 (2309.00071); longrope
Ding et al. 2024 (2402.13753). Axes: Wang et al. 2024 (2409.12191) and, interleaved, Qwen3-VL's report (2511.21631).
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.architecture.model import Rope
from jaxengine.device import DeviceTraits
from jaxengine.ops import RopeTables, StepBatch


def inverse_frequencies(rope: Rope, dim: int) -> np.ndarray:
    """f32 [dim/2], radians per position. For `dynamic` and `longrope`, before the part that depends on the length."""
    plain: np.ndarray = rope.theta ** -_exponents(rope, dim)
    if rope.kind == "linear":
        plain = plain / rope.factor
    elif rope.kind == "llama3":
        plain = _llama3(rope, plain)
    elif rope.kind == "yarn":
        plain = _yarn(rope, plain, dim)
    elif rope.kind == "proportional":
        plain = np.where(np.arange(dim // 2) < rope.turning, plain / rope.factor, 0)
    return plain.astype(np.float32)


def _exponents(rope: Rope, dim: int) -> np.ndarray:
    """f64 [dim/2]: of 1 / theta, for each frequency."""
    if rope.axes is not None and rope.layout == "own":
        return np.concatenate([np.arange(count, dtype=np.float64) / max(count, 1) for count in rope.axes])
    exponents: np.ndarray = np.arange(0, dim, 2, dtype=np.float64) / dim
    if rope.axes is not None and rope.layout == "alternating":
        return np.concatenate([exponents[::2], exponents[1::2]])
    return exponents


def axis_of_frequency(rope: Rope) -> np.ndarray:
    """i32 [dim/2]: the axis (0 time, 1 row, 2 column) of the position that turns each frequency of a rope with axes."""
    assert rope.axes is not None
    if rope.layout != "interleaved":
        return np.repeat(np.arange(3, dtype=np.int32), rope.axes)
    number = np.arange(sum(rope.axes), dtype=np.int32)
    axis = number % 3
    return np.where(number < 3 * np.asarray(rope.axes)[axis], axis, 0)


def _llama3(rope: Rope, plain: np.ndarray) -> np.ndarray:
    """Long wavelengths are multiplied by `factor`, short ones kept, and those between interpolated."""
    rotations = rope.original_positions * plain / (2 * math.pi)  # full ones, within the trained length
    smooth = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: Rope, plain: np.ndarray, dim: int) -> np.ndarray:
    def dimension_of(rotations: float) -> float:
        return dim * math.log(rope.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    interpolated = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return interpolated * plain / rope.factor + (1 - interpolated) * plain


def attention_factor(rope: Rope) -> float:
    """The factor of cos and sin; other than 1 only for yarn and longrope."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "longrope" and rope.factor > 1:
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_positions))
    if rope.kind != "yarn":
        return 1.0

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def make_rope_tables(
    rope: Rope, head_dim: int, position: Array, rope_length: Array, rope_position: Array | None = None
) -> RopeTables:
    """The tables of tokens at `position` [T] in texts of `rope_length` [T].

    Where images make them differ from `position`, `rope_position` [T] or [3, T] has the positions that rotate. A token
    of one position has it on every axis.

    The frequencies of `dynamic` and `longrope` depend on the length of the text when a token's key is computed: the
    larger of `rope_length` and the token's position + 1. `rope_length` is the prompt's length, so the result does not
    depend on how the prompt was cut into chunks; with a cache transformers does the same for `dynamic`. A text that
    grows beyond the trained length of `longrope` is computed anew, as in transformers (`ModelSpec.rope_switch_length`),
    and `rope_length` is then its length at that time.
    """
    dim = rope.dim or head_dim
    frequency = jnp.asarray(inverse_frequencies(rope, dim))  # [dim/2]
    length = jnp.maximum(position + 1, rope_length)[:, None]  # [T, 1]
    if rope.kind == "dynamic":
        longest = jnp.maximum(length, rope.original_positions)
        stretch = rope.factor * longest / rope.original_positions - (rope.factor - 1)
        exponent = np.arange(0, dim, 2, dtype=np.float32) / (dim - 2)
        frequency = frequency * stretch.astype(jnp.float32) ** -exponent  # [T, dim/2]
    elif rope.kind == "longrope":
        short, long = (jnp.asarray(factors, jnp.float32) for factors in (rope.short_factors, rope.long_factors))
        frequency = frequency / jnp.where(length > rope.original_positions, long, short)  # [T, dim/2]
    angle = _turning(rope, position if rope_position is None else rope_position) * frequency
    factor: float | Array = attention_factor(rope)
    if rope.short_attention_factor is not None:
        factor = jnp.where(length > rope.original_positions, factor, rope.short_attention_factor)  # [T, 1]
    return RopeTables(jnp.cos(angle) * factor, jnp.sin(angle) * factor)


def _turning(rope: Rope, position: Array) -> Array:
    """f32 [T, dim/2], or [T, 1] where all are equal: the position by which each frequency turns."""
    if position.ndim == 1:
        return position[:, None].astype(jnp.float32)
    if rope.axes is None:
        return position[0, :, None].astype(jnp.float32)
    return position.astype(jnp.float32)[axis_of_frequency(rope)].T


def rope_tables_of(rope: Rope | None, head_dim: int, batch: StepBatch, device: DeviceTraits) -> RopeTables | None:
    """The tables of the tokens of `batch`, for all layers that share `rope`; None where nothing is rotated."""
    if rope is None:
        return None
    make = partial(make_rope_tables, rope, head_dim, batch.position, batch.rope_length, batch.rope_position)
    return _computed_once(make, batch) if device.duplicates_shared_work else make()


def _computed_once(make: Callable[[], RopeTables], batch: StepBatch) -> RopeTables:
    """The tables of `make`, computed under a condition that is always true but for a step without tokens.

    On a CPU XLA fuses cos and sin into every layer, despite optimization barriers, but not across a condition. With it
    the rotation of 256 tokens took 0.5 ms a layer instead of 1.8 (3 + 9 heads of 64, JAX 0.10.2).
    """
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(make))
    return jax.lax.cond(batch.tokens > 0, make, lambda: zeros)
