"""How fast a model could decode one sequence in each quantised format: the bytes of a step at a GPU's bandwidth.

python -m tests.bench.formats needs no GPU and no weights of that size. What a device would hold is decided by the
engine, given a tiny checkpoint that was written in the format and the shapes of the large one.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convert.compose import compose
from convert.config.config import Config
from convert.formats.shards import open_tensors
from gateway.benchmark.markdown import table
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.architecture.weight_format import StoredWeight
from jaxengine.capacity.roofline import kv_bytes_per_token, projection_elements, weight_bytes
from jaxengine.device import DeviceTraits
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import abstract_parameters, held_bytes
from jaxengine.weights.quantization import is_projection, weight_formats
from tests.quantized_formats import Published, published
from tests.shapes import H200, LLAMA_8B
from tests.tiny import write_tiny
from tests.tiny_quantized import write_quantized

BANDWIDTH = 4.8e12  # bytes/s of an H200's memory, by its data sheet
CONTEXT = 1024
GROUP = 128
COLUMNS = ("Llama-3.1-8B", "bits on disk", "on a GPU", "GB a token", "ms", "tokens/s", "times bfloat16")


@dataclass(frozen=True)
class Enlarged:
    """A model of the shapes of `spec`, its projections stored as those of `small`. It cannot be read."""

    small: ParameterSource
    spec: ModelSpec
    dtype: str = "bfloat16"

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        raise NotImplementedError

    def stored(self, name: str) -> StoredWeight | None:
        return self.small.stored(f"layers.0.{name.rpartition('.')[2]}")


def held_bits(made: Published, original: Path, directory: Path, spec: ModelSpec, device: DeviceTraits = H200) -> float:
    """Of a projection's weight on `device`, scales, zero points and order included, if a model of the shapes of `spec`
    is stored as `made`.

    Args:
        original: a small checkpoint in floats.
        directory: where it is written in the format.
    """
    written = write_quantized(original, directory, made.format) / "quantised"
    small = compose(Config.load(written / "config.json"), open_tensors(written))
    source = Enlarged(small, spec)
    mesh, formats = make_mesh(), weight_formats(source, None, device)
    planned = abstract_parameters(spec, mesh, "bfloat16", device, formats)
    others = {name: each for name, each in planned.items() if not is_projection(name)}
    return 8 * (held_bytes(planned) - held_bytes(others)) / projection_elements(spec)


def wide_llama(directory: Path) -> Path:
    """A small checkpoint that groups of 128 inputs divide."""
    return write_tiny(directory, "llama2_gqa", hidden_size=256, intermediate_size=512)


def step_bytes(spec: ModelSpec, bits: float) -> float:
    """What a step of one sequence behind `CONTEXT` tokens reads, in bfloat16 but for projections of `bits`."""
    saved = (16 - bits) / 8 * projection_elements(spec)
    return weight_bytes(spec, 2) - saved + CONTEXT * kv_bytes_per_token(spec, 2)


def row(name: str, disk: float, held: float, spec: ModelSpec) -> list[str]:
    size, plain = step_bytes(spec, held), step_bytes(spec, 16)
    return [
        name,
        f"{disk:.3f}",
        f"{held:.3f}",
        f"{size / 1e9:.2f}",
        f"{1e3 * size / BANDWIDTH:.2f}",
        f"{BANDWIDTH / size:.0f}",
        f"{plain / size:.2f}",
    ]


def main() -> int:
    rows = [row("bfloat16", 16, 16, LLAMA_8B)]
    with tempfile.TemporaryDirectory() as directory:
        original = wide_llama(Path(directory))
        for number, (name, made) in enumerate(published(GROUP).items()):
            held = held_bits(made, original, Path(directory, str(number)), LLAMA_8B)
            rows.append(row(name, made.bits, held, LLAMA_8B))
    print(f"one sequence behind {CONTEXT} tokens, {BANDWIDTH / 1e12} TB/s, embedding and head in bfloat16\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
