"""A layer of experts: is it right, and how near does it come to reading what the chosen experts weigh?

At the shapes of Mixtral-8x7B and Qwen3-30B-A3B, from one token to a prompt, each token's experts drawn at random; and
the same in 8 and 4 bits. gpt-oss' have biases and a clamped gate. On a CPU the kernels of 4 bits are interpreted.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.architecture.model import ClampedGate
from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.model.linear import weight_layout
from jaxengine.model.mlp import Activated
from jaxengine.ops import experts
from jaxengine.ops.experts import ExpertBiases, ExpertMLPs
from jaxengine.ops.weight import Weight
from jaxengine.weights.conversion import make_weight
from jaxengine.weights.quantization import FORMATS, FOUR_BITS
from tests.gpu.ceilings import seconds_per_call
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.shapes import H200

CHECKED = 8  # tokens that are computed again in f32, pair by pair
Stored = tuple[Weight, Weight]  # [E, 2, F, hidden] and [E, hidden, F]
HELD: dict[str, WeightFormat | None] = {"floats": None, **FORMATS, **FOUR_BITS}
OF_GPT_OSS = {  # with fp4's table: like that of e2m1, half of it is the other half negated
    "floats": None,
    "mxfp4": replace(FOUR_BITS["fp4"], name="mxfp4", scales="bfloat16", group=32),
}
LIMITS = {"float32": 2e-3, "bfloat16": 1e-2}  # ‖ours - exact‖ / ‖exact‖


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    ffn: int
    count: int
    used: int
    gate: ClampedGate | None = None  # whose experts have biases

    @property
    def held(self) -> dict[str, WeightFormat | None]:
        return OF_GPT_OSS if self.gate else HELD


FULL = (
    Shape("Mixtral-8x7B", 4096, 14336, 8, 2),
    Shape("Qwen3-30B-A3B", 2048, 768, 128, 8),
    Shape("gpt-oss-20b", 2880, 2880, 32, 4, ClampedGate()),
)
TINY = (Shape("tiny", 128, 128, 8, 2), Shape("tiny gpt-oss", 128, 128, 8, 2, ClampedGate()))
TOKENS = (1, 4, 16, 32, 128, 512, 2048)
TRIED = ("floats", "int4", "mxfp4")  # of a tiny model


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    sizes = TOKENS if full else TOKENS[:3]
    for shape in FULL if full else TINY:
        for name, format in shape.held.items():
            if full or name in TRIED:
                with record.part(f"experts of {shape.name} in {name}"), interpreted_on_a_cpu():
                    measure(record, shape, scale, sizes[::3] if format else sizes, name)


def interpreted_on_a_cpu() -> Any:
    kernels = partial(experts.triton.apply, interpret=DeviceTraits.of(jax.devices()[0]).on_host)
    return patch.object(experts.triton, "apply", kernels)


def measure(record: Record, shape: Shape, scale: Scale, sizes: tuple[int, ...], name: str) -> None:
    """A row of "correctness" for the largest of `sizes`, and one of "experts" for each, of experts in the format `name`
    of `shape.held`.
    """
    apply = jax.jit(ExpertMLPs(Activated(clamped=shape.gate)))
    stored, kind = matrices(shape, scale.dtype, shape.held[name]), name if shape.held[name] else scale.dtype
    biases = drawn_biases(shape, scale.dtype)
    held = sum(array.nbytes for array in jax.tree.leaves(stored))
    for tokens in sizes:
        x, weights, chosen = inputs(shape, tokens, scale.dtype)
        seconds = seconds_per_call(apply, (x, weights, chosen, *stored, biases), scale.repeats)
        each = 3 * shape.hidden * shape.ffn  # elements of an expert
        read, computed = len(np.unique(chosen)) * held / shape.count, 2 * tokens * shape.used * each
        row = {"seconds": seconds, "bytes": read, "operations": computed}
        record.add("experts", shape=shape.name, weights=kind, tokens=tokens, **row)
    ours = apply(x, weights, chosen, *stored, biases)
    found, limit = error(shape, x, weights, chosen, stored, biases, ours), LIMITS[scale.dtype]
    check = f"experts: {shape.name} in {kind}, {tokens} tokens"
    record.add("correctness", check=check, dtype=scale.dtype, error=found, limit=limit, ok=found <= limit)


def matrices(shape: Shape, dtype: str, format: WeightFormat | None) -> Stored:
    """Both stacks, drawn on the device in its layout, or in a GPU's where the format has groups."""
    device = H200 if format and format.group else DeviceTraits.of(jax.devices()[0])
    sizes = (shape.count, 2, shape.ffn, shape.hidden), (shape.count, shape.hidden, shape.ffn)
    made = []
    for key, size in zip(jax.random.split(jax.random.key(0)), sizes, strict=True):
        layout = weight_layout(Parameter(size, (None,) * len(size), 1, stacked=1), device, format, size[-2:])
        drawn = jax.random.normal(key, size, dtype) * size[-1] ** -0.5
        made.append(jax.jit(partial(make_weight, layout))(drawn) if format else Weight(drawn, layout))
    return made[0], made[1]


def drawn_biases(shape: Shape, dtype: str) -> ExpertBiases | None:
    if shape.gate is None:
        return None
    up, down = jax.random.split(jax.random.key(1))
    gate_up = jax.random.normal(up, (shape.count, 2, shape.ffn), dtype)
    return ExpertBiases(gate_up, jax.random.normal(down, (shape.count, shape.hidden), dtype))


def inputs(shape: Shape, tokens: int, dtype: str) -> tuple[Array, Array, Array]:
    """x [T, hidden], weights [T, k] that sum to one, and distinct experts [T, k]."""
    random = np.random.default_rng(tokens)
    chosen = random.random((tokens, shape.count)).argsort(1)[:, : shape.used]
    weights = random.dirichlet(np.ones(shape.used), tokens)
    x = random.normal(size=(tokens, shape.hidden))
    return jnp.asarray(x, dtype), jnp.asarray(weights, jnp.float32), jnp.asarray(chosen, jnp.int32)


def error(
    shape: Shape, x: Array, weights: Array, chosen: Array, stored: Stored, biases: ExpertBiases | None, ours: Array
) -> float:
    """Relative error of the first tokens."""
    activated = Activated(clamped=shape.gate)
    checked = range(min(CHECKED, len(x)))
    exact = np.zeros((len(checked), x.shape[1]))
    for token in checked:
        for weight, expert in zip(np.asarray(weights[token]), np.asarray(chosen[token]), strict=True):
            up, out = restored(stored, int(expert))
            of_up, of_down = (0, 0) if biases is None else (np.asarray(each[expert], np.float32) for each in biases)
            inner = np.asarray(activated(*(up @ np.asarray(x[token], np.float32) + of_up)), np.float32)
            exact[token] += weight * (out @ inner + of_down)
    got = np.asarray(ours[: len(checked)], np.float64)
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def restored(stored: Stored, expert: int) -> tuple[np.ndarray, np.ndarray]:
    """One expert in f32: [2, F, hidden] and [hidden, F]."""
    up, down = (np.asarray(each.matrix(jnp.int32(expert)).dense("float32")) for each in stored)
    return up, down
