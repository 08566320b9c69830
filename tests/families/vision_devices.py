"""Towers over several devices.

`python -m tests.families.vision_devices DIRECTORY` prints a list of JSON objects, one for each model: for each number
of devices, how far rows are from those of one device, and which share of the tower's bytes one device holds. It is a
program of its own, because the number of a CPU's devices is fixed when JAX starts.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from jaxengine.weights.loading import array_bytes, whole_bytes
from tests.families.vision_rows import Encoded
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, Seen, noise

NAMES = ("llava_next", "idefics2")  # whose towers, and a resampler, have two heads that hold keys
DEVICES = (2, 4)  # each of four has all of these


def outcome(directory: Path, name: str) -> dict[int, tuple[float, float]]:
    target = write_vision(directory, name)
    seen = Reference(target, name).see(noise(64, 40))
    (one,) = Encoded(target).rows([seen])
    return {devices: _beside(one, Encoded(target, devices), seen) for devices in DEVICES}


def _beside(one: np.ndarray, many: Encoded, seen: Seen) -> tuple[float, float]:
    tower = {name: array for name, array in many.parameters.items() if name.startswith("vision.layers.")}
    held = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tower)
    return float(np.abs(one - many.rows([seen])[0]).max()), array_bytes(held) / whole_bytes(held)


if __name__ == "__main__":
    print(json.dumps([outcome(Path(sys.argv[1]), name) for name in NAMES]))
