"""How a product with 4-bit weights is best tiled: sizes of tiles, splits, warps and stages, each timed by itself.

At the shapes of Llama-3.1-8B. Other tilings than the product's own are compiled side by side, and run one by one.
"""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.pallas import triton as plt

from jaxengine.device import DeviceTraits
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.model import linear
from jaxengine.model.linear import Linear
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight
from jaxengine.weights.quantization import FOUR_BITS
from tests.gpu.ceilings import seconds_per_call
from tests.gpu.products import FULL, TINY, Shape, drawn
from tests.gpu.record import Record, Row, one_line
from tests.gpu.scale import Scale

CACHED = 200 << 20  # bytes, several times what an H200 keeps of them near
SHOWN = 5  # of each product, the fastest first
FORMAT = FOUR_BITS["int4"]


@dataclass(frozen=True)
class Tiling:
    """Of one product."""

    outputs: int
    tokens: int
    splits: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.outputs} x {self.tokens} / {self.splits}, {self.warps}, {self.stages}"


def tilings(tokens: int, shape: Shape) -> Iterator[Tiling]:
    """Those that could be best."""
    if tokens <= 16:
        sizes = itertools.product((32, 64, 128), (16,), (1, 2, 4, 8, 16), ((2, 4), (4, 3), (4, 4), (4, 6), (8, 3)))
    elif tokens <= 128:
        sizes = itertools.product((64, 128), (64, 128), (1, 2, 4), ((4, 2), (4, 3), (8, 2), (8, 3), (8, 4)))
    else:
        sizes = itertools.product((64, 128, 256), (64, 128, 256), (1,), ((4, 3), (8, 2), (8, 3), (8, 4)))
    for outputs, columns, splits, (warps, stages) in sizes:
        programs = shape.outputs // outputs * -(-tokens // columns) * splits
        if 96 <= programs <= 4096 or tokens > 128:
            yield Tiling(outputs, columns, splits, warps, stages)


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    for tokens, shape in itertools.product((1, 128, 2048) if full else (1,), FULL if full else TINY):
        with record.part(f"tilings {shape.name}, {tokens} tokens"):
            measure(record, scale, tokens, shape)


def measure(record: Record, scale: Scale, tokens: int, shape: Shape) -> None:
    """Rows of "tilings": 16 bits, the product's own tiling, and the fastest others."""
    few = scale.name != "full"
    x = jax.random.normal(jax.random.key(tokens), (tokens, shape.inputs), jnp.bfloat16)
    floats, packed = (copies(drawn(shape, format)) for format in (None, FORMAT))
    others = list(tilings(tokens, shape)) if not few else [Tiling(64, 16, 2, 4, 3)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled: dict[str, Future[Any]] = {}
        options = COMPILER_OPTIONS.get(jax.default_backend())
        compiled["16 bits"] = pool.submit(lowered(floats, x).compile, options)
        compiled["ours"] = pool.submit(lowered(packed, x).compile, options)
        for tiling in others:
            compiled[str(tiling)] = pool.submit(lowered(packed, x, tiling).compile, options)
    rows: list[Row] = []
    repeats = scale.repeats if tokens <= 128 else 2
    for name, future in compiled.items():
        weights = floats if name == "16 bits" else packed
        try:
            seconds = seconds_per_call(future.result(), (weights, x), repeats) / len(weights)
        except Exception as error:
            print(f"{shape.name}, {tokens} tokens, {name}: {one_line(error)}", flush=True)
            continue
        size = sum(array.nbytes for array in jax.tree.leaves(weights[0]))
        operations = 2 * tokens * shape.outputs * shape.inputs
        cost = {"seconds": seconds, "bandwidth": size / seconds, "arithmetic": operations / seconds}
        kept = "bfloat16" if name == "16 bits" else FORMAT.name
        rows.append({"weights": kept, "shape": shape.name, "tokens": tokens, "tiles": name, **cost})
        print(f"{shape.name}, {tokens} tokens, {name}: {seconds * 1e6:.1f}", flush=True)
    for row in [*rows[:2], *sorted(rows[2:], key=lambda row: row["seconds"])[:SHOWN]]:
        record.add("tilings", **row)


def copies(weight: Weight) -> list[Weight]:
    """So many that none is found in the device's cache when its turn comes again."""
    size = sum(array.nbytes for array in jax.tree.leaves(weight))
    count = max(2, min(24, -(-CACHED // size)))
    return [weight, *(jax.tree.map(jnp.copy, weight) for _ in range(count - 1))]


def lowered(weights: list[Weight], x: jax.Array, tiling: Tiling | None = None) -> Any:
    """A program of the products of `x` with each of `weights`, one after the other."""
    graph = nnx.graphdef(Linear(weights[0], None))

    @jax.jit
    def one(weight: Weight, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, nnx.state(Linear(weight, None)))(x)

    def chain(weights: list[Weight], x: jax.Array) -> list[jax.Array]:
        return [one(weight, x) for weight in weights]

    interpreted = partial(grouped.product, interpret=DeviceTraits.of(jax.devices()[0]).on_host)
    with patch.object(linear.grouped, "product", interpreted):
        if tiling is None:
            return jax.jit(chain).lower(weights, x)
        tiles = partial(forced, tiling)
        params = plt.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages)
        with (
            patch.object(grouped.Tiles, "choose", tiles),
            patch.object(grouped, "compiler_params", lambda *_: params),
            patch.object(grouped, "MANY_TOKENS", 1 << 30),
        ):
            return jax.jit(chain).lower(weights, x)


def forced(tiling: Tiling, tokens: int, outputs: int, inputs: int, stored: Any, most: int, wide: bool) -> Any:
    """Instead of `Tiles.choose`."""
    return replace(grouped.Tiles(0, 0, 0, stored), **{n: getattr(tiling, n) for n in ("outputs", "tokens", "splits")})
