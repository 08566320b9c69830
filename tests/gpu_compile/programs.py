"""The programs that `test_steps` judges: the engine's own steps at the shape of Llama-3.1-8B, and programs with known
faults that the same eyes must see. Run by `toolchain.run`; writes the facts as JSON.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.compiler import COMPILER_OPTIONS, Compiler, Shapes
from jaxengine.loading import abstract_parameters
from jaxengine.model.spec import ModelSpec
from jaxengine.ops import choose
from jaxengine.options import EngineOptions, derive_limits
from jaxengine.sharding import make_mesh, replicated
from tests.gpu_compile import h200
from tests.gpu_compile.h200 import Facts, facts
from tests.shapes import LLAMA_8B

FOUR_LAYERS = dataclasses.replace(LLAMA_8B, num_layers=4)  # what holds for each of four layers holds for 32
PAGES = 4096
ROWS, TOKENS = 128, 2048
OPTIONS = COMPILER_OPTIONS["gpu"]


def compiler(spec: ModelSpec, devices: int, attention: str = "auto") -> Compiler:
    """The engine's compiler on `devices` imaginary H200s, weights being shapes without data."""
    mesh = make_mesh(devices, h200.devices(devices))
    back_end = choose(attention, mesh.devices.flat[0], spec.head_dim, spec.group, "bfloat16")
    limits = derive_limits(EngineOptions(max_total_tokens=8192), spec, "gpu")
    shapes = Shapes(spec, limits, "bfloat16", PAGES, page_size=16, top=20)
    return Compiler(shapes, mesh, abstract_parameters(spec, mesh, "bfloat16", "gpu"), "gpu", back_end)


def decode(spec: ModelSpec, devices: int, attention: str = "auto") -> Facts:
    made = compiler(spec, devices, attention)
    return facts(made.lower_backbone(made.shapes.decode(ROWS)), (made.caches(), made.rooms()), OPTIONS)


def mixed(spec: ModelSpec, devices: int) -> Facts:
    made = compiler(spec, devices)
    return facts(made.lower_backbone(made.shapes.mixed(TOKENS)), (made.caches(), made.rooms()), OPTIONS)


def draw(spec: ModelSpec, devices: int, greedy: bool) -> Facts:
    made = compiler(spec, devices)
    donated = made.rooms().last if greedy else (made.rooms().last, made.seats())
    return facts(made.lower_draw(ROWS, greedy), donated, OPTIONS)


def cache_not_donated() -> Facts:
    """An update of a cache that the caller keeps: it must be copied."""
    return control(lambda cache, new: jax.lax.dynamic_update_slice(cache, new, (7, 0)), (1024, 4096), (8, 4096))


def weight_turned() -> Facts:
    """A weight that is wanted as it is and transposed: it must be written out."""
    return control(lambda x, weight: (x @ weight, weight.T), (8, 4096), (4096, 2048))


def loop_of_unknown_length() -> Facts:
    """A loop whose length only the device knows: the host must drive it."""
    return control(lambda x: jax.lax.while_loop(lambda y: y.max() > 1, lambda y: y @ y / 2, x), (1024, 1024))


def control(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Facts:
    mesh = make_mesh(1, h200.devices(1))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=replicated(mesh)) for shape in shapes]
    return facts(jax.jit(function).lower(*arguments), (), OPTIONS)


PROGRAMS = {
    "decode": lambda: decode(LLAMA_8B, 1),
    "mixed": lambda: mixed(FOUR_LAYERS, 1),
    "draw_greedy": lambda: draw(FOUR_LAYERS, 1, greedy=True),
    "draw": lambda: draw(FOUR_LAYERS, 1, greedy=False),
    "decode_tp8": lambda: decode(FOUR_LAYERS, 8),
    "mixed_tp8": lambda: mixed(FOUR_LAYERS, 8),
    "draw_greedy_tp8": lambda: draw(FOUR_LAYERS, 8, greedy=True),
    "decode_reference": lambda: decode(FOUR_LAYERS, 1, "reference"),
    "cache_not_donated": cache_not_donated,
    "weight_turned": weight_turned,
    "loop_of_unknown_length": loop_of_unknown_length,
}

if __name__ == "__main__":
    made = {name: dataclasses.asdict(program()) for name, program in PROGRAMS.items()}
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1))
