"""How a product with weights in few bits is best tiled: sizes of tiles, splits, warps and stages, each timed by itself.

At the shapes of Llama-3.1-8B. Other tilings than the product's own are compiled side by side, and run one by one.
"""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plt

from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight
from tests.gpu.copies import copies, held_bytes, lowered, seconds
from tests.gpu.products import FULL, HELD, TINY, Shape, drawn
from tests.gpu.record import Record, Row, one_line
from tests.gpu.scale import Scale

SHOWN = 5  # of each product, the fastest first
FORMATS = ("int4", "int8")


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
        sizes = itertools.product((32, 64, 128), (16,), (1, 2, 4, 8), ((2, 3), (2, 4), (4, 3), (4, 4), (4, 6), (8, 3)))
    else:
        sizes = itertools.product((64, 128, 256), (64, 128), (1, 2, 4), ((4, 2), (4, 3), (8, 2), (8, 3), (8, 4)))
    for outputs, columns, splits, (warps, stages) in sizes:
        programs = shape.outputs // outputs * -(-tokens // columns) * splits
        if 96 <= programs <= 4096 and outputs * columns <= 64 * 64 * warps:
            yield Tiling(outputs, columns, splits, warps, stages)


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    for tokens, shape, name in itertools.product((1, 128) if full else (1,), FULL if full else TINY, FORMATS):
        with record.part(f"tilings {shape.name} in {name}, {tokens} tokens"):
            measure(record, scale, tokens, shape, name)


def measure(record: Record, scale: Scale, tokens: int, shape: Shape, name: str) -> None:
    """Rows of "tilings": 16 bits, the product's own tiling, and the fastest others."""
    x = jax.random.normal(jax.random.key(tokens), (tokens, shape.inputs), jnp.bfloat16)
    floats, packed = (copies(drawn(shape, held)) for held in (None, HELD[name]))
    others = list(tilings(tokens, shape)) if scale.name == "full" else [Tiling(64, 16, 2, 4, 3)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled: dict[str, Future[Any]] = {}
        options = COMPILER_OPTIONS.get(jax.default_backend())
        compiled["16 bits"] = pool.submit(lowered(floats, x).compile, options)
        compiled["ours"] = pool.submit(lowered(packed, x).compile, options)
        for tiling in others:
            compiled[str(tiling)] = pool.submit(tiled(packed, x, tiling).compile, options)
        wait(compiled.values())  # what is measured beside compiling takes longer
    rows: list[Row] = []
    for tiles, future in compiled.items():
        weights = floats if tiles == "16 bits" else packed
        try:
            taken = seconds(future.result(), weights, x, scale.repeats)
        except Exception as error:
            print(f"{shape.name}, {tokens} tokens, {name}, {tiles}: {one_line(error)}", flush=True)
            continue
        operations = 2 * tokens * shape.outputs * shape.inputs
        cost = {"seconds": taken, "bandwidth": held_bytes(weights[0]) / taken, "arithmetic": operations / taken}
        kept = "bfloat16" if tiles == "16 bits" else name
        rows.append({"weights": kept, "shape": shape.name, "tokens": tokens, "tiles": tiles, **cost})
        print(f"{shape.name}, {tokens} tokens, {name}, {tiles}: {taken * 1e6:.1f}", flush=True)
    for row in [*rows[:2], *sorted(rows[2:], key=lambda row: row["seconds"])[:SHOWN]]:
        record.add("tilings", **row)


def tiled(weights: list[Weight], x: jax.Array, tiling: Tiling) -> Any:
    """`lowered`, in other tiles."""
    with patch.object(grouped.Tiles, "choose", partial(forced, tiling)):
        return lowered(weights, x)


def forced(tiling: Tiling, tokens: int, outputs: int, inputs: int, stored: Any, *_: Any) -> Any:
    """Instead of `Tiles.choose`."""
    params = plt.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages)
    return grouped.Tiles(tiling.outputs, tiling.tokens, tiling.splits, stored, params)
