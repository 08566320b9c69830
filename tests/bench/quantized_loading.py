"""Loading a quantised checkpoint: how fast beside reading its bytes, and how much host memory beyond what is kept.

python -m tests.bench.quantized_loading [--layers 8] [--rounds 3] [FORMAT…] writes random numbers in the shape of
Llama-3.1-8B, with as large a part of its vocabulary as of its layers. In a process of its own it reads the file once
through a small buffer, once into memory of its own, as whoever keeps it must, and loads it as a GPU holds it, packed,
and as a CPU does by default, in int8; in turn for each round, while the process's anonymous memory is sampled.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.compose import compose
from convert.config.config import Config
from convert.families.llama import TENSORS
from convert.formats.safetensors import encode_header
from convert.formats.shards import open_tensors
from gateway.benchmark.markdown import table
from jaxengine.device import CPU, DeviceTraits
from tests.bench.loading import anonymous_bytes, peak_memory, read_once
from tests.shapes import H200, LLAMA_8B
from tests.tiny_quantized import NF4

BLOCK = 2**22
GROUP = 128
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Drawn:
    """How a tensor is filled: with bytes drawn at random, of which only bits in `mask` are kept, or with `value`."""

    dtype: str
    shape: Shape
    mask: int = 0xFF
    value: Any = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def pieces(self) -> Iterator[bytes]:
        if self.value is not None:
            yield np.broadcast_to(np.asarray(self.value, self.dtype), self.shape).tobytes()
            return
        block = (np.random.default_rng(0).integers(0, 256, BLOCK, np.uint8) & np.uint8(self.mask)).tobytes()
        for left in range(self.nbytes, 0, -BLOCK):
            yield block[: min(left, BLOCK)]


def _gptq(out: int, inp: int) -> dict[str, Drawn]:
    groups = inp // GROUP
    return {
        ".qweight": Drawn("int32", (inp // 8, out)),
        ".qzeros": Drawn("int32", (groups, out // 8), value=0x77777777),
        ".scales": Drawn("float16", (groups, out), value=0.01),
        ".g_idx": Drawn("int32", (inp,), value=np.arange(inp) // GROUP),
    }


def _awq(out: int, inp: int) -> dict[str, Drawn]:
    groups = inp // GROUP
    return {
        ".qweight": Drawn("int32", (inp, out // 8)),
        ".qzeros": Drawn("int32", (groups, out // 8)),
        ".scales": Drawn("float16", (groups, out), value=0.01),
    }


def _nf4(out: int, inp: int) -> dict[str, Drawn]:
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [out, inp]}).encode()
    return {
        ".weight": Drawn("uint8", (out * inp // 2, 1)),
        ".weight.absmax": Drawn("float32", (out * inp // 64,), value=0.1),
        ".weight.quant_map": Drawn("float32", (16,), value=NF4),
        ".weight.quant_state.bitsandbytes__nf4": Drawn("uint8", (len(state),), value=np.frombuffer(state, np.uint8)),
    }


def _fp8_blocks(out: int, inp: int) -> dict[str, Drawn]:
    return {
        ".weight": Drawn("float8_e4m3fn", (out, inp), mask=0xF7),  # none is NaN
        ".weight_scale_inv": Drawn("float32", (out // 128, inp // 128), value=0.01),
    }


def _packed(out: int, inp: int) -> dict[str, Drawn]:
    return {
        ".weight_packed": Drawn("int32", (out, inp // 8)),
        ".weight_scale": Drawn("bfloat16", (out, inp // GROUP), value=0.01),
        ".weight_shape": Drawn("int64", (2,), value=(out, inp)),
    }


def _mxfp4(out: int, inp: int) -> dict[str, Drawn]:
    return {
        ".weight_packed": Drawn("uint8", (out, inp // 2)),
        ".weight_scale": Drawn("uint8", (out, inp // 32), value=120),
    }


def _compressed_tensors(layout: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", **weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}


FORMATS: dict[str, tuple[dict[str, Any], Callable[[int, int], dict[str, Drawn]]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, _gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, _awq),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, _nf4),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, _fp8_blocks),
    "pack-quantized": (_compressed_tensors("pack-quantized", type="int", group_size=GROUP), _packed),
    "mxfp4": (_compressed_tensors("mxfp4-pack-quantized", type="float", group_size=32), _mxfp4),
}


def write_llama(directory: Path, format: str, layers: int) -> Path:
    """A checkpoint of `layers` layers of Llama-3.1-8B, its projections in `format`."""
    spec = LLAMA_8B
    quantization, tensors_of = FORMATS[format]
    config = {
        "model_type": "llama",
        "vocab_size": spec.vocab_size * layers // spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_size,
        "num_hidden_layers": layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "max_position_embeddings": 64,
        "quantization_config": quantization,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tensors: dict[str, Drawn] = {}
    for name, shape in _shapes(config).items():
        if name.startswith("model.layers") and len(shape) == 2:
            parts = tensors_of(*shape)
            tensors |= {f"{name.removesuffix('.weight')}{suffix}": drawn for suffix, drawn in parts.items()}
        else:
            tensors[name] = Drawn("bfloat16", shape, mask=0xBF)  # none is infinite
    with (directory / "model.safetensors").open("wb") as file:
        file.write(encode_header({name: (drawn.dtype, drawn.shape) for name, drawn in tensors.items()}))
        for drawn in tensors.values():
            file.writelines(drawn.pieces())
    return directory


def _shapes(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    sizes: dict[str, Shape] = {"q_proj": (hidden, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    sizes |= {"o_proj": (hidden, hidden), "gate_proj": (ffn, hidden), "up_proj": (ffn, hidden)}
    sizes |= {"down_proj": (hidden, ffn)}
    sizes |= dict.fromkeys(("embed_tokens", "lm_head"), (config["vocab_size"], hidden))
    named = [each for tensors in TENSORS.values() for each in tensors]
    return {
        each.replace("{i}", str(i)): sizes.get(each.split(".")[-2], (hidden,))
        for each in named
        for i in (range(config["num_hidden_layers"]) if "{i}" in each else [0])
    }


def measure(directory: Path, rounds: int) -> dict[str, float]:
    """In a process of its own: GB/s of each way, and of each way to load, the bytes beyond what is kept."""
    command = [sys.executable, "-m", "tests.bench.quantized_loading", "--measure", str(directory)]
    done = subprocess.run([*command, "--rounds", str(rounds)], check=True, stdout=subprocess.PIPE, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _measure(directory: Path, rounds: int) -> dict[str, float]:
    import jax

    from jaxengine.sharding import make_mesh
    from jaxengine.weights.loading import load_parameters

    file, mesh = directory / "model.safetensors", make_mesh()
    seconds: dict[str, list[float]] = {}
    beyond: dict[str, float] = {}

    def timed(name: str, action: Callable[[], Any]) -> None:
        with peak_memory() as peak:
            start = time.perf_counter()
            kept = action()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            held = anonymous_bytes()
        del kept
        beyond[f"{name}, beyond"] = max(beyond.get(f"{name}, beyond", 0), peak[0] - held)

    def load(device: DeviceTraits) -> Any:
        source = compose(Config.load(directory / "config.json"), open_tensors(directory))
        return jax.block_until_ready(load_parameters(source, mesh, device.dtype or "bfloat16", device, lambda *_: None))

    jax.block_until_ready(jax.numpy.zeros(1))
    for _ in range(rounds):
        timed("read", lambda: read_once(file))
        timed("read and kept", lambda: np.fromfile(file, np.uint8))
        timed("packed", lambda: load(H200))
        timed("int8", lambda: load(CPU))
    total = file.stat().st_size
    return {"bytes": total, **{name: total / 1e9 / statistics.median(each) for name, each in seconds.items()}, **beyond}


COLUMNS = ("format", "GB", "read", "read and kept", "packed", "of read and kept", "beyond, MB", "int8", "beyond, MB")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quantized_loading", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(FORMATS)}; all by default")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path, help="a checkpoint, in this process")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measure(options.measure, options.rounds)))
        return 0
    rows = []
    for format in options.formats or FORMATS:
        with tempfile.TemporaryDirectory() as directory:
            found = measure(write_llama(Path(directory), format, options.layers), options.rounds)
        read, kept, packed, int8 = (f"{found[name]:.2f}" for name in ("read", "read and kept", "packed", "int8"))
        share = f"{found['packed'] / found['read and kept']:.2f}"
        packing, rounding = (f"{found[f'{name}, beyond'] / 1e6:.0f}" for name in ("packed", "int8"))
        rows.append([format, f"{found['bytes'] / 1e9:.2f}", read, kept, packed, share, packing, int8, rounding])
    print("GB/s of the file:\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
