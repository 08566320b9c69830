"""Random adapters of every matrix of a Llama's layers, made without files, `convert` or PEFT."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.architecture.adaptation import Adaptable, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table


def llama_targets(spec: ModelSpec) -> dict[str, Adaptable]:
    """Every matrix of a layer, with an adapter for each of q, k, v, gate and up."""
    attention, mlp = Adaptable((*(0,) * spec.group, 1, 2), 1), Adaptable((0, 1), 0)
    kinds = {"qkv": attention, "out": Adaptable(), "gate_up": mlp, "down": Adaptable()}
    return {f"layers.{i}.{name}": kind for i in range(spec.num_layers) for name, kind in kinds.items()}


def random_adapter(targets: Mapping[str, Adaptable], spec: ModelSpec, rank: int, seed: int) -> AdapterWeights:
    """One that changes every one of `targets`, and seldom the likeliest token of a random model."""
    chance, table = np.random.default_rng(seed), parameter_table(spec)
    matrices = {}
    for name, target in targets.items():
        shape, inputs = table[name].shape, table[name].inputs
        outputs, width = shape[: len(shape) - inputs], int(np.prod(shape[len(shape) - inputs :]))
        a = chance.standard_normal((target.modules, rank, width), np.float32) / np.float32(width**0.5)
        b = np.float32(0.01) * chance.standard_normal((*outputs, rank), np.float32)
        matrices[name] = LowRank(a, b)
    return AdapterWeights(f"random-{seed}", "", seed.to_bytes(32, "big"), matrices)


@dataclass(frozen=True)
class RandomReader:
    """An `AdapterReader`: the adapter `name` is random, seeded by that number."""

    spec: ModelSpec
    rank: int

    @property
    def targets(self) -> dict[str, Adaptable]:
        return llama_targets(self.spec)

    def read(self, name: str) -> AdapterWeights:
        return random_adapter(self.targets, self.spec, self.rank, int(name))
