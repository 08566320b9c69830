"""Products of one layer with weights in few bits: are they right, and how do they stand beside 16 bits?

At the shapes of Llama-3.1-8B, from one token to a prompt. On a CPU the kernel is interpreted.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.model.linear import weight_layout
from jaxengine.model.mlp import Activated
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.weights.quantization import FORMATS, FOUR_BITS, group_weight, quantize_weight
from tests.gpu.copies import copies, held_bytes, lowered, seconds
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.shapes import H200

CHECKED = 8  # tokens that are computed again
LIMIT = 2e-2  # ‖ours - exact‖ / ‖exact‖, of activations and tables rounded to bf16
HELD: dict[str, WeightFormat | None] = {
    "bfloat16": None,
    **FORMATS,
    **FOUR_BITS,
    "int4 with zeros": WeightFormat("int4 with zeros", "uint8", "float16", "uint8", 128, bits=4),
    "int8 with zeros": WeightFormat("int8 with zeros", "uint8", "float16", "uint8", 128),
    "int8 in groups": WeightFormat("int8 in groups", "int8", "float16", group=32),
    "fp8 in blocks": WeightFormat("fp8 in blocks", "float8_e4m3fn", "float32", group=128),
}


@dataclass(frozen=True)
class Shape:
    """Of a product; of two `matrices` the products are a gate and what it multiplies, and are activated."""

    name: str
    outputs: int  # of all matrices
    inputs: int
    matrices: int = 1

    @property
    def axes(self) -> tuple[int, ...]:
        """Of the parameter."""
        each = self.outputs // self.matrices
        return (self.matrices, each, self.inputs) if self.matrices > 1 else (each, self.inputs)


FULL = (
    Shape("qkv", 6144, 4096),
    Shape("out", 4096, 4096),
    Shape("gate_up", 28672, 4096, 2),
    Shape("down", 4096, 14336),
)
TINY = (Shape("tiny", 64, 256, 2),)
TOKENS = (1, 2, 16, 64, 128, 256, 2048)
FEW = 256  # up to so many, all copies of a weight are multiplied in turn; beyond, reading it is little of the time


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    for shape in FULL if full else TINY:
        with record.part(f"products {shape.name}"):
            measure(record, shape, scale, TOKENS if full else TOKENS[:2])


def measure(record: Record, shape: Shape, scale: Scale, sizes: tuple[int, ...]) -> None:
    """A row of "products" and one of "correctness" for each of `sizes` in each format, compiled side by side."""
    options, baseline = COMPILER_OPTIONS.get(jax.default_backend()), dict[int, float]()
    held = {name: copies(drawn(shape, format)) for name, format in HELD.items()}
    timed = {tokens: slice(None if tokens <= FEW else 2) for tokens in sizes}
    rows = {tokens: jax.random.normal(jax.random.key(tokens), (tokens, shape.inputs), jnp.bfloat16) for tokens in sizes}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = {
            (name, tokens): pool.submit(lowered(weights[timed[tokens]], x).compile, options)
            for name, weights in held.items()
            for tokens, x in rows.items()
        }
    for (name, tokens), program in compiled.items():
        with record.attempt(f"{tokens} tokens times {shape.name} in {name}"):
            weights, x, chain = held[name][timed[tokens]], rows[tokens], program.result()
            taken = seconds(chain, weights, x, scale.repeats)
            beside = baseline.setdefault(tokens, taken) / taken
            cost = {"bytes": held_bytes(weights[0]), "operations": 2 * tokens * shape.outputs * shape.inputs}
            row = {"shape": shape.name, "weights": name, "tokens": tokens, "faster_than_16_bits": beside}
            record.add("products", **row, seconds=taken, **cost)
            found = error(weights[0], x, chain(weights, x)[0])
            check = f"product {shape.name} in {name}, {tokens} tokens"
            record.add("correctness", check=check, dtype="bfloat16", error=found, limit=LIMIT, ok=found <= LIMIT)


def drawn(shape: Shape, format: WeightFormat | None) -> Weight:
    """A random matrix as a GPU holds it."""
    parameter = Parameter(shape.axes, (None,) * len(shape.axes), 1)
    layout = weight_layout(parameter, H200, format, (shape.outputs, shape.inputs))
    if format is None or format in (FORMATS | FOUR_BITS).values():
        matrix = jax.random.normal(jax.random.key(0), parameter.shape, jnp.bfloat16) * shape.inputs**-0.5
        if format is None:
            return Weight(matrix, layout)
        made = quantize_weight(layout, matrix)
    else:
        made = random(parameter, format, layout)
    return group_weight(layout, made) if layout.grouped else made


def random(parameter: Parameter, format: WeightFormat, layout: WeightLayout) -> Weight:
    """A matrix in the parameter table's layout of which every component is random."""
    draw = np.random.default_rng(0)
    values = jnp.asarray(draw.integers(0, 1 << min(format.bits, 6), parameter.shape), format.values)
    shared = parameter.component("scales", format).shape
    scales = jnp.asarray(draw.uniform(1e-3, 2e-3, shared), format.scales)
    zeros = None if format.zeros is None else jnp.asarray(draw.integers(0, 16, shared), format.zeros)
    return Weight(values, layout, scales, zeros)


def error(weight: Weight, x: Array, ours: Array) -> float:
    """Relative, of the first tokens, to the product of what the weight stands for in f32."""
    dense = weight.dense("float32")
    exact = jnp.einsum("ti,...oi->...to", x[:CHECKED].astype(jnp.float32), dense, precision="highest")
    if dense.ndim == 3:
        exact = Activated()(*exact)
    return float(jnp.linalg.norm(ours[:CHECKED].astype(jnp.float32) - exact) / jnp.linalg.norm(exact))
