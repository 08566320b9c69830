"""Pictures through a tower and its connector: do the kernels see what the reference sees, and how fast?

The towers of LLaVA-NeXT-7B (heads of 64), of Gemma 3 (72) and of Qwen2.5-VL-7B (80, windows), with random weights.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec, Norm, Vision
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.vision import Connector, Tower
from jaxengine.device import DeviceTraits
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.packing import EncodeShape, needed, pack_pictures
from jaxengine.ops import Ops
from jaxengine.sharding import make_mesh
from tests.gpu.ceilings import seconds_per_call
from tests.gpu.record import Record
from tests.gpu.scale import TINY, Scale
from tests.gpu.weights import random_parameters
from tests.shapes import GEMMA3_EYES, LLAVA_NEXT_7B, QWEN2_5_EYES

# ‖kernels - reference‖ / ‖reference‖ of rows: in bf16, each rounds what it stores to 8 bits in every layer.
LIMITS = {"float32": 2e-3, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Case:
    name: str
    spec: ModelSpec
    picture: PictureShape


def seeing(vision: Vision, hidden: int = 4096) -> ModelSpec:
    """A text model of which only the width is read."""
    return dataclasses.replace(TINY, hidden_size=hidden, vision=dataclasses.replace(vision, token=0))


assert LLAVA_NEXT_7B.vision is not None
FULL = (
    Case("LLaVA-NeXT-7B, 5 tiles", seeing(LLAVA_NEXT_7B.vision), PictureShape(((24, 24),) * 5, 672, 672)),
    Case("Gemma 3, 1 tile", seeing(GEMMA3_EYES, 2560), PictureShape(((64, 64),), 896, 896)),
    Case("Qwen2.5-VL-7B, 1036 x 1036", seeing(QWEN2_5_EYES, 3584), PictureShape(((74, 74),), 1036, 1036)),
)
SMALL = (
    Case(
        "tiny",
        seeing(Vision(Tower(64, 2, 2, 32, 96, Norm("layer", bias=True), grid=(4, 4)), Connector(), 0, 14, 588), 128),
        PictureShape(((4, 4),), 56, 56),
    ),
)


def run(record: Record, scale: Scale) -> None:
    for case in FULL if scale.name == "full" else SMALL:
        with record.part(f"tower of {case.name}"):
            measure(record, scale, case)


def measure(record: Record, scale: Scale, case: Case) -> None:
    """A row of "towers", and one of "correctness"."""
    mesh, device = make_mesh(1), DeviceTraits.of(jax.devices()[0])
    vision, dtype = case.spec.vision, "bfloat16" if device.kernels else "float32"
    assert vision is not None
    parameters = random_parameters(case.spec, mesh, dtype, device)
    shape = needed(vision, [case.picture])
    patches = jax.random.normal(jax.random.key(0), (shape.patches, vision.patch_values), jnp.dtype(dtype))
    fields = jnp.asarray(pack_pictures(vision, shape, [case.picture]))
    back_ends = ("triton", "reference") if device.kernels else ("reference", "reference")
    ours, exact = (
        partial(encoder(case.spec, parameters, device, Ops(name, mesh), shape), patches, fields) for name in back_ends
    )
    found = relative_error(ours(), exact())
    limit, check = LIMITS[dtype], f"tower of {case.name}"
    record.add("correctness", check=check, dtype=dtype, error=found, limit=limit, ok=found <= limit)
    row = {"bytes": held(case.spec), "operations": operations(case)}
    record.add(
        "towers", tower=case.name, tokens=shape.patches, seconds=seconds_per_call(ours, (), scale.repeats), **row
    )


def encoder(spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops, shape: EncodeShape) -> Any:
    """Compiled: patches and fields → rows."""
    graph, state = nnx.split(VisionEncoder(spec, parameters, device, ops))
    call = jax.jit(lambda state, patches, fields: nnx.merge(graph, state)(shape, patches, fields))
    return partial(call, state)


def relative_error(ours: Array, exact: Array) -> float:
    a, b = (np.asarray(rows, np.float32) for rows in (ours, exact))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b)) if np.isfinite(a).all() else math.inf


def held(spec: ModelSpec) -> int:
    """Bytes of weights in 16 bits."""
    return 2 * sum(math.prod(each.shape) for name, each in parameter_table(spec).items() if name.startswith("vision."))


def operations(case: Case) -> float:
    """Of products with the layers' matrices, and of attention within tiles, or windows where there are any."""
    vision = case.spec.vision
    assert vision is not None
    tower, table = vision.tower, parameter_table(case.spec)
    matrices = sum(math.prod(p.shape) for n, p in table.items() if n.startswith("vision.layers.") and p.inputs)
    whole = len(tower.whole_layers) if tower.window else tower.num_layers
    width = 4 * tower.num_heads * tower.head_dim
    seen = sum(
        n * (whole * n + (tower.num_layers - whole) * tower.window**2) for n in map(math.prod, case.picture.tiles)
    )
    return 2.0 * matrices * case.picture.patches + width * seen
