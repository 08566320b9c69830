"""A layer of experts: is it right, and how near does it come to reading what the chosen experts weigh?

At the shapes of Mixtral-8x7B and Qwen3-30B-A3B, from one token to a prompt, each token's experts drawn at random; and
the same in 8 bits.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.device import DeviceTraits
from jaxengine.model.linear import input_major
from jaxengine.ops.experts import ExpertMLPs, Scales
from jaxengine.weights.quantization import FORMATS, quantize_weight
from tests.gpu.ceilings import seconds_per_call
from tests.gpu.record import Record
from tests.gpu.scale import Scale

CHECKED = 8  # tokens that are computed again in f32, pair by pair
LIMITS = {"float32": 2e-3, "bfloat16": 1e-2}  # ‖ours - exact‖ / ‖exact‖


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    ffn: int
    count: int
    used: int


FULL = (Shape("Mixtral-8x7B", 4096, 14336, 8, 2), Shape("Qwen3-30B-A3B", 2048, 768, 128, 8))
TINY = (Shape("tiny", 64, 48, 8, 2),)
TOKENS = (1, 4, 16, 32, 128, 512, 2048)


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    sizes = TOKENS if full else TOKENS[:3]
    for shape in FULL if full else TINY:
        for quantize in (None, *FORMATS):
            with record.part(f"experts of {shape.name} in {quantize or scale.dtype}"):
                measure(record, shape, scale, sizes[::3] if quantize else sizes, quantize)


class Stored(NamedTuple):
    """Matrices as `ExpertMLPs` takes them."""

    gate_up: Array
    down: Array
    scales: Scales | None


def measure(record: Record, shape: Shape, scale: Scale, sizes: tuple[int, ...], quantize: str | None) -> None:
    """A row of "correctness" for the largest of `sizes`, and one of "experts" for each."""
    mlps = ExpertMLPs(jax.nn.silu, gated=True, input_major=input_major(DeviceTraits.of(jax.devices()[0])))
    apply = jax.jit(mlps)
    stored, kind = matrices(shape, mlps.input_major, scale.dtype, quantize), quantize or scale.dtype
    for tokens in sizes:
        x, weights, chosen = inputs(shape, tokens, scale.dtype)
        seconds = seconds_per_call(apply, (x, weights, chosen, *stored), scale.repeats)
        each = 3 * shape.hidden * shape.ffn  # elements of an expert
        read, computed = len(np.unique(chosen)) * each * stored.down.dtype.itemsize, 2 * tokens * shape.used * each
        row = {"seconds": seconds, "bytes": read, "operations": computed}
        record.add("experts", shape=shape.name, weights=kind, tokens=tokens, **row)
    ours = apply(x, weights, chosen, *stored)
    found, limit = error(mlps, x, weights, chosen, stored, ours), LIMITS[scale.dtype]
    name = f"experts: {shape.name} in {kind}, {tokens} tokens"
    record.add("correctness", check=name, dtype=scale.dtype, error=found, limit=limit, ok=found <= limit)


def matrices(shape: Shape, input_major: bool, dtype: str, quantize: str | None) -> Stored:
    """Drawn on the device in its layout."""
    keys = jax.random.split(jax.random.key(0))
    inner = (shape.hidden, 2, shape.ffn) if input_major else (2, shape.ffn, shape.hidden)
    outer = (shape.ffn, shape.hidden) if input_major else (shape.hidden, shape.ffn)
    drawn = [
        jax.random.normal(key, (shape.count, *rest), dtype) for key, rest in zip(keys, (inner, outer), strict=True)
    ]
    gate_up, down = drawn[0] * shape.hidden**-0.5, drawn[1] * shape.ffn**-0.5
    if quantize is None:
        return Stored(gate_up, down, None)
    axes = (1, 1) if input_major else (3, 2)  # that are contracted
    made = [
        jax.jit(partial(quantize_weight, (axis,), FORMATS[quantize]))(matrix)
        for axis, matrix in zip(axes, (gate_up, down), strict=True)
    ]
    return Stored(made[0][0], made[1][0], (made[0][1], made[1][1]))


def inputs(shape: Shape, tokens: int, dtype: str) -> tuple[Array, Array, Array]:
    """x [T, hidden], weights [T, k] that sum to one, and distinct experts [T, k]."""
    random = np.random.default_rng(tokens)
    chosen = random.random((tokens, shape.count)).argsort(1)[:, : shape.used]
    weights = random.dirichlet(np.ones(shape.used), tokens)
    x = random.normal(size=(tokens, shape.hidden))
    return jnp.asarray(x, dtype), jnp.asarray(weights, jnp.float32), jnp.asarray(chosen, jnp.int32)


def error(mlps: ExpertMLPs, x: Array, weights: Array, chosen: Array, stored: Stored, ours: Array) -> float:
    """Relative error of the first tokens."""
    checked = range(min(CHECKED, len(x)))
    exact = np.zeros((len(checked), x.shape[1]))
    for token in checked:
        for weight, expert in zip(np.asarray(weights[token]), np.asarray(chosen[token]), strict=True):
            up, out = restored(mlps, stored, int(expert))
            gate, value = up @ np.asarray(x[token], np.float32)
            exact[token] += weight * (out @ (gate / (1 + np.exp(-gate)) * value))
    got = np.asarray(ours[: len(checked)], np.float64)
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def restored(mlps: ExpertMLPs, stored: Stored, expert: int) -> tuple[np.ndarray, np.ndarray]:
    """One expert in f32: [2, F, hidden] and [hidden, F]."""
    up, out = (np.asarray(matrix[expert], np.float32) for matrix in (stored.gate_up, stored.down))
    if mlps.input_major:
        up, out = up.transpose(1, 2, 0), out.T
    if stored.scales is None:
        return up, out
    of_up, of_out = (np.asarray(scale[expert])[..., None] for scale in stored.scales)
    return up * of_up, out * of_out
