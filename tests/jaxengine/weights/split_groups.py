"""Formats with groups over several devices, as GPUs hold them; the kernels are interpreted.

`python -m tests.jaxengine.weights.split_groups COUNT CASE…` prints a JSON object: for each case, how far the logits
over so many devices are from those of one, and how many arrays of its projections are split. It is a program of its
own, because the number of a CPU's devices is fixed when JAX starts.
"""

import dataclasses
import json
import sys

import jax
import numpy as np

from jaxengine.architecture.model import Experts, LayerKind, ModelSpec
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from jaxengine.weights.quantization import NF4
from tests.families.forward import Forward
from tests.gpu.scale import TINY
from tests.interpreted import interpreted_kernels
from tests.jaxengine.engines import prompt
from tests.jaxengine.weights.test_stored import CHANNELS, EIGHT_BITS, FOUR_BITS, ORDERED, QuantizedCheckpoint
from tests.shapes import H200

SPEC = dataclasses.replace(TINY, num_heads=16, num_kv_heads=8, head_dim=32, ffn_size=512)
TABLE = WeightFormat("table", "uint8", "float32", group=16, table=NF4, bits=4)
EXPERTS = dataclasses.replace(SPEC, kinds=(LayerKind(experts=True),), experts=Experts(4, 2, 512))
CASES = {format.name: (format, SPEC) for format in (FOUR_BITS, EIGHT_BITS, TABLE, ORDERED, CHANNELS)}
CASES |= {f"experts, {format.name}": (format, EXPERTS) for format in (FOUR_BITS, EIGHT_BITS, CHANNELS)}


def difference(format: WeightFormat, spec: ModelSpec, devices: int) -> tuple[float, int]:
    """Relative, and the count."""
    source, ids = QuantizedCheckpoint(format, spec=spec), prompt(20)
    one, several = (Forward(source, slots=1, device=H200, devices=each).prefill(0, ids, 0, 20) for each in (1, devices))
    loaded = load_parameters(source, make_mesh(devices), "float32", H200, lambda *_: None)
    weights = [each for each in loaded.values() if isinstance(each, Weight) and each.layout.grouped]
    split = sum(not array.sharding.is_fully_replicated for array in jax.tree.leaves(weights))
    return float(np.abs(several - one).max() / np.abs(one).max()), split


if __name__ == "__main__":
    with interpreted_kernels():
        print(json.dumps({name: difference(*CASES[name], int(sys.argv[1])) for name in sys.argv[2:]}))
