"""The product with grouped formats at the numbers of tokens where tiles or the kernel change, interpreted: bit for bit.

Numbers, scales and tokens are such that every sum is exact in f32, in whatever order it is made. What is left to
rounding is the last step, to 16 bits, so each kernel must give what exact arithmetic gives.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxengine.ops.packing import octets, pack, plane_of
from jaxengine.ops.triton import grouped
from jaxengine.weights.quantization import NF4

pytestmark = pytest.mark.slow

TILES = 43  # an odd number: of 256 inputs each, Llama-2-7B's MLP has as many
TABLE = tuple(np.round(np.asarray(NF4) * 64) / 64)  # exact in 16 bits


@dataclass(frozen=True)
class Held:
    """A format: of 4 bits, or of 8-bit `values`; in groups, or 0 for a scale a channel."""

    group: int
    values: str = ""
    zeros: str = ""
    table: tuple[float, ...] = ()

    @property
    def bits(self) -> int:
        return 8 if self.values else 4


FORMATS = {
    "int4": Held(128),
    "int4 with zeros": Held(128, zeros="uint8"),
    "int4 with zeros in floats": Held(64, zeros="float16"),
    "int4, a scale a channel": Held(0),
    "int4, a scale and a zero a channel": Held(0, zeros="float16"),
    "nf4": Held(64, table=TABLE),
    "int8": Held(0, "int8"),
    "fp8": Held(0, "float8_e4m3fn"),
    "uint8 with zeros": Held(128, "uint8", "uint8"),
    "int4 in groups of 384": Held(384),
    "int4 in groups of 192": Held(192, zeros="uint8"),
    "int8 in groups of 96": Held(96, "int8"),
    "fp8 in groups of 320": Held(320, "float8_e4m3fn"),
}


@pytest.mark.parametrize("outputs", [16, 80])
@pytest.mark.parametrize("tokens", [1, 2, grouped.MANY_TOKENS - 1, grouped.MANY_TOKENS])
@pytest.mark.parametrize("name", FORMATS)
def test_every_kernel_gives_what_exact_arithmetic_gives(name: str, tokens: int, outputs: int) -> None:
    held, draw = FORMATS[name], np.random.default_rng(outputs)
    plane = plane_of(1 << 20, held.group, held.bits)
    inputs = TILES * math.lcm(plane * (16 // held.bits), held.group or 1)
    groups = inputs // held.group if held.group else 1
    codes, numbers = drawn(held, draw, (outputs, inputs))
    scales = 2.0 ** draw.integers(-3, 1, (groups, outputs))
    base = zeros(held, draw, (groups, outputs))
    x = draw.integers(-2, 3, (tokens, inputs)).astype(np.float64)
    ours = grouped.product(
        jnp.asarray(x, "bfloat16"),
        pack(codes, plane, held.bits),
        jnp.asarray(scales, "bfloat16"),
        None if base is None else jnp.asarray(base),
        plane=plane,
        group=inputs // groups,
        offset=0 if held.values or held.zeros or held.table else 8,
        table=held.table,
        octets=held.values,
        interpret=True,
    )
    less = 0 if base is None else np.repeat(base.T.astype(np.float64), inputs // groups, 1)
    expected = x @ ((numbers - less) * np.repeat(scales.T, inputs // groups, 1)).T
    np.testing.assert_array_equal(ours, expected.astype(ml_dtypes.bfloat16))


def drawn(held: Held, draw: np.random.Generator, shape: tuple[int, int]) -> tuple[jnp.ndarray, np.ndarray]:
    """Codes, and what they stand for, zeros aside."""
    if not held.values:
        codes = draw.integers(0, 16, shape)
        stands = np.asarray(held.table)[codes] if held.table else codes - (0 if held.zeros else 8)
        return jnp.asarray(codes), stands
    every = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, held.values, held.values))
    if "float" in held.values:  # few enough bits between the largest and the smallest
        sizes = np.abs(every.astype(np.float64))
        every = every[(sizes >= 0.25) & (sizes <= 16)]
    values = draw.choice(every, shape)
    return octets(jnp.asarray(values)), values.astype(np.float64)


def zeros(held: Held, draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray | None:
    """Whole numbers, or quarters."""
    if not held.zeros:
        return None
    return (draw.integers(0, 64, shape) / (4 if "float" in held.zeros else 1)).astype(held.zeros)
