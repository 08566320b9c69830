"""Programs with known faults, which the eyes that judge the engine's must see."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.sharding import make_mesh, replicated
from tests.gpu_compile import h200
from tests.gpu_compile.h200 import Facts, facts
from tests.gpu_compile.steps import OPTIONS


def cache_not_donated() -> Facts:
    """An update of a cache that the caller keeps: it must be copied."""
    return control(lambda cache, new: jax.lax.dynamic_update_slice(cache, new, (7, 0)), (1024, 4096), (8, 4096))


def weight_turned() -> Facts:
    """A weight that is wanted as it is and transposed: it must be written out."""
    return control(lambda x, weight: (x @ weight, weight.T), (8, 4096), (4096, 2048))


def vocabulary_sorted() -> Facts:
    """More than the 16 highest of a vocabulary: XLA sorts all of it."""
    return control(lambda logits: jax.lax.top_k(logits, 20), (8, 128256))


def loop_of_unknown_length() -> Facts:
    """A loop whose length only the device knows: without loops in graphs the host must drive it."""
    options = {name: graphs.replace(",WHILE", "") for name, graphs in OPTIONS.items()}
    loop = partial(jax.lax.while_loop, lambda y: y.max() > 1, lambda y: y @ y / 2)
    return control(loop, (1024, 1024), options=options)


def control(function: Callable[..., Any], *shapes: tuple[int, ...], options: dict[str, str] = OPTIONS) -> Facts:
    mesh = make_mesh(1, h200.devices(1))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=replicated(mesh)) for shape in shapes]
    return facts(jax.jit(function).lower(*arguments), (), options)
