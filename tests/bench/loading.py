"""Loading a synthetic checkpoint: how fast beside reading its bytes, and how much host memory beyond what is kept.

python -m tests.bench.loading [--gigabytes 2] writes a Llama in bf16, then in a process of its own reads the file once
through a small buffer, once into memory of its own, as whoever keeps it must, and loads it as stored, transposed, and
transposed to f32, in turn for each round, while the process's anonymous memory is sampled.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from convert.compose import compose
from convert.config.config import Config
from convert.families.llama import TENSORS
from convert.formats.safetensors import encode_header
from convert.formats.shards import open_tensors
from jaxengine.architecture.parameters import parameter_table
from jaxengine.device import CPU, DeviceTraits

BLOCK = 2**24


def write_llama(directory: Path, gigabytes: float) -> Path:
    """About `gigabytes` of bf16: embedding and head an eighth each, the rest layers."""
    hidden = 64 * round(32 * math.sqrt(gigabytes / 2))
    config = {
        "model_type": "llama",
        "vocab_size": round(gigabytes * 1e9 / 16 / hidden),
        "hidden_size": hidden,
        "intermediate_size": 11 * hidden // 4,
        "num_hidden_layers": max(1, round(gigabytes * 0.75e9 / (2 * 12.25 * hidden**2))),
        "num_attention_heads": hidden // 64,
        "max_position_embeddings": 64,
    }
    (directory / "config.json").write_text(json.dumps(config))
    shapes = _shapes(config)
    block = np.random.default_rng(0).standard_normal(BLOCK // 2, np.float32).astype(ml_dtypes.bfloat16).tobytes()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(encode_header({name: ("bfloat16", shape) for name, shape in shapes.items()}))
        left = sum(2 * math.prod(shape) for shape in shapes.values())
        while left:
            left -= file.write(block[: min(left, BLOCK)])
    return directory


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    sizes = {
        "embedding": (config["vocab_size"], hidden),
        "head": (config["vocab_size"], hidden),
        "layers.{i}.gate_up": (ffn, hidden),
        "layers.{i}.down": (hidden, ffn),
        "layers.{i}.qkv": (hidden, hidden),
        "layers.{i}.out": (hidden, hidden),
    }
    layers = range(config["num_hidden_layers"])
    named = [(name, each) for name, tensors in TENSORS.items() for each in tensors]
    return {
        each.replace("{i}", str(i)): sizes.get(name, (hidden,))
        for name, each in named
        for i in (layers if "{i}" in each else [0])
    }


def measure(directory: Path, rounds: int) -> dict[str, float]:
    """In a process of its own: GB/s of each way, and bytes of all, of the largest parameter and beyond what is kept."""
    command = [sys.executable, "-m", "tests.bench.loading", "--measure", str(directory), "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _measure(directory: Path, rounds: int) -> dict[str, float]:
    import jax

    from jaxengine.sharding import make_mesh
    from jaxengine.weights.loading import load_parameters

    file = directory / "model.safetensors"
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    shapes = [parameter.shape for parameter in parameter_table(source.spec).values()]
    total, mesh = 2 * sum(map(math.prod, shapes)), make_mesh()
    seconds: dict[str, list[float]] = {}
    beyond = 0

    def timed(name: str, action: Callable[[], Any]) -> int:
        """Bytes that no file backs while what `action` returns is kept."""
        start = time.perf_counter()
        kept = action()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
        held = anonymous_bytes()
        del kept
        return held

    def load(dtype: str, device: DeviceTraits) -> list[jax.Array]:
        loaded = load_parameters(source, mesh, dtype, device, lambda *_: None)
        return jax.block_until_ready(list(loaded.values()))  # type: ignore[no-any-return]

    jax.block_until_ready(jax.numpy.zeros(1))
    for _ in range(rounds):
        timed("read", lambda: read_once(file))
        timed("read and kept", lambda: np.fromfile(file, np.uint8))
        timed("loaded as stored", lambda: load("bfloat16", DeviceTraits("gpu", "")))
        with peak_memory() as peak:
            held = timed("loaded transposed", lambda: load("bfloat16", CPU))
        beyond = max(beyond, peak[0] - held)
        timed("loaded transposed to f32", lambda: load("float32", CPU))
    rates = {name: total / 1e9 / statistics.median(each) for name, each in seconds.items()}
    return {"bytes": total, "largest": 2 * max(map(math.prod, shapes)), "beyond": beyond, **rates}


def read_once(path: Path) -> None:
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def anonymous_bytes() -> int:
    """What this process holds that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most that `anonymous_bytes` was, sampled every millisecond, in a list of one."""
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.001):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loading", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path, help="a checkpoint, in this process")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measure(options.measure, options.rounds)))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        found = measure(write_llama(Path(directory), options.gigabytes), options.rounds)
    share = found["beyond"] / found["largest"]
    rates = [f"{name} {found[name]:.2f}" for name in found if name.startswith(("read", "loaded"))]
    print(f"{found['bytes'] / 1e9:.2f} GB, GB/s: {', '.join(rates)}")
    print(f"at most {found['beyond'] / 1e6:.0f} MB beyond what is kept, {share:.2f} of the largest parameter")
    return 0


if __name__ == "__main__":
    sys.exit(main())
