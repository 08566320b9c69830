"""Formats with groups over several devices, as GPUs hold them; the kernels are interpreted.

`python -m tests.jaxengine.weights.split_groups COUNT CASE…` prints a JSON object: for each case, how far the logits
over so many devices are from those of one, and how many arrays of its projections are split. Behind a plus sign it has
an adapter. This is a program of its own, because the number of a CPU's devices is fixed when JAX starts.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from types import MappingProxyType

import jax
import numpy as np

from jaxengine.architecture.adaptation import Adaptable, AdapterWeights, LowRank
from jaxengine.architecture.model import Experts, LayerKind, ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from jaxengine.weights.quantization import FORMATS, NF4
from tests.families.forward import Forward
from tests.gpu.scale import TINY
from tests.interpreted import interpreted_kernels
from tests.jaxengine.engines import prompt
from tests.jaxengine.weights.test_stored import CHANNELS, EIGHT_BITS, FOUR_BITS, ORDERED, QuantizedCheckpoint
from tests.shapes import H200

SPEC = dataclasses.replace(TINY, num_heads=16, num_kv_heads=8, head_dim=32, ffn_size=512)
TABLE = WeightFormat("table", "uint8", "float32", group=16, table=NF4, bits=4)
EXPERTS = dataclasses.replace(SPEC, kinds=(LayerKind(experts=True),), experts=Experts(4, 2, 512))
CASES = {format.name: (format, SPEC) for format in (FOUR_BITS, EIGHT_BITS, TABLE, ORDERED, CHANNELS, *FORMATS.values())}
CASES |= {f"experts, {format.name}": (format, EXPERTS) for format in (FOUR_BITS, EIGHT_BITS, CHANNELS, FORMATS["int8"])}


class RandomAdapters:
    """Of the projections of SPEC, whose q, k and v are three modules, gate and up two."""

    targets: Mapping[str, Adaptable] = MappingProxyType(
        {
            "layers.0.qkv": Adaptable((*(0,) * (SPEC.num_heads // SPEC.num_kv_heads), 1, 2), 1),
            "layers.0.out": Adaptable(),
            "layers.0.gate_up": Adaptable((0, 1), 0),
            "layers.0.down": Adaptable(),
        }
    )

    def read(self, name: str) -> AdapterWeights:
        draw, table, matrices = np.random.default_rng(0), parameter_table(SPEC), {}
        for matrix, adaptable in self.targets.items():
            outputs = len(table[matrix].shape) - table[matrix].inputs
            a = draw.normal(size=(adaptable.modules, 4, math.prod(table[matrix].shape[outputs:])))
            b = draw.normal(size=(*table[matrix].shape[:outputs], 4)) / 20
            matrices[matrix] = LowRank(a.astype(np.float32), b.astype(np.float32))
        return AdapterWeights(name, "", b"", matrices)


def difference(format: WeightFormat, spec: ModelSpec, devices: int, *, adapted: bool) -> tuple[float, int]:
    """Relative, and the count."""
    source, ids = QuantizedCheckpoint(format, spec=spec), prompt(20)
    adapter = (RandomAdapters(), "") if adapted else None
    one, several = (
        Forward(source, slots=1, device=H200, devices=each, adapter=adapter).prefill(0, ids, 0, 20)
        for each in (1, devices)
    )
    loaded = load_parameters(source, make_mesh(devices), "float32", H200, lambda *_: None)
    weights = [each for each in loaded.values() if isinstance(each, Weight) and each.layout.grouped]
    split = sum(not array.sharding.is_fully_replicated for array in jax.tree.leaves(weights))
    return float(np.abs(several - one).max() / np.abs(one).max()), split


if __name__ == "__main__":
    with interpreted_kernels():
        devices, names = int(sys.argv[1]), sys.argv[2:]
        found = {
            name: difference(*CASES[name.removeprefix("+")], devices, adapted=name.startswith("+")) for name in names
        }
        print(json.dumps(found))
