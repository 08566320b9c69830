"""Adapters made of random numbers, of any model and without PEFT."""

from pathlib import Path

import numpy as np

from convert.adapters.adapter import Adapter, Delta
from convert.families.family import Family
from convert.mapping.recipes import recipes
from jaxengine.architecture.model import ModelSpec

WHERE = Path("adapter")


def delta(module: str, outputs: int, inputs: int, *, rank: int = 3, seed: int = 0) -> Delta:
    rng = np.random.default_rng([seed, *module.encode()])
    a, b = rng.standard_normal((rank, inputs), np.float32), rng.standard_normal((outputs, rank), np.float32)
    return Delta(module, a, b, scale=0.5)


def adapter_of(spec: ModelSpec, family: Family, matrices: tuple[str, ...], *, seed: int = 0) -> Adapter:
    """One that changes all `matrices` of the parameter table, in each module that the checkpoint has of them."""
    made = recipes(spec, family.tensors, family.layout)
    deltas = {}
    for part in (part for name in matrices for part in made[name].parts):
        outputs, inputs = part.stored[::-1] if part.transposed else part.stored
        module = part.tensor.removesuffix(".weight")
        deltas[module] = delta(module, outputs, inputs, rank=2 + len(deltas) % 3, seed=seed)
    return Adapter(WHERE, "", None, tuple(deltas.values()))
