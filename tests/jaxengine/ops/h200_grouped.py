"""The product with grouped formats, compiled for an H200 that is not there. Run by `toolchain.run`."""

import dataclasses
import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxengine.capacity.compiler import described, described_devices
from jaxengine.capacity.gpus import GPUS, Gpu
from jaxengine.device import DeviceTraits
from jaxengine.model.mlp import Activated
from jaxengine.ops.packing import codes_in_word, plane_of
from jaxengine.ops.triton import grouped
from jaxengine.sharding import make_mesh, replicated
from jaxengine.weights.quantization import NF4
from tests.gpu_compile import h200, thunks
from tests.gpu_compile.ptxas import kernel

OUTPUTS = INPUTS = 4096
OURS = re.compile("grouped_product|dequantised_chunk")


def compile_product(
    tokens: int,
    *,
    group: int = 128,
    values: str = "",
    zeros: str = "",
    table: tuple[float, ...] = (),
    outputs: int = OUTPUTS,
    inputs: int = INPUTS,
    dtype: str = "bfloat16",
    shared: int = grouped.HOPPER_SHARED,
    gated: bool = False,
    gpu: Gpu | None = None,
) -> dict[str, Any]:
    """Codes of 4 bits, or 8-bit `values`; of a gate and what it multiplies if `gated`. For another `gpu` than an H200
    nothing is told, only compiled.
    """
    devices = described_devices(described(gpu), 1) if gpu else h200.devices(1)
    shared = DeviceTraits("gpu", gpu.name, gpu.capability).shared_memory if gpu else shared
    sharding = replicated(make_mesh(1, devices))

    def array(*shape: int, dtype: str) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    bits = 8 if values else 4
    plane = plane_of(inputs, group, bits)
    matrix = array(outputs, inputs // codes_in_word(bits), dtype="uint16")
    scales = array(inputs // group, outputs, dtype="bfloat16")
    base = array(inputs // group, outputs, dtype=zeros) if zeros else None
    product = partial(
        grouped.product,
        plane=plane,
        group=group,
        offset=0 if zeros or values else 8,
        table=table,
        octets=values,
        shared=shared,
        activation=Activated() if gated else None,
        parts=2 if gated else 1,
    )
    lowered = jax.jit(product).lower(array(tokens, inputs, dtype=dtype), matrix, scales, base)
    if gpu:
        lowered.compile()
        return {}
    return h200.once(judge, lowered, {})  # type: ignore[no-any-return]


def judge(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        compiled = lowered.compile(compiler_options={**options, **h200.dumping(dump)})
        sequence = thunks.read(Path(dump))
        path, *_ = (path for path in sorted(Path(dump).glob("*.ptx")) if OURS.search(path.read_text()))
        found = dataclasses.asdict(kernel(path, sequence)[1])
    return found | {"temporaries": compiled.memory_analysis().temp_size_in_bytes}


PRODUCTS = {
    "1 token": partial(compile_product, 1),
    "1 token, zeros": partial(compile_product, 1, zeros="uint8"),
    "1 token, zeros that are not whole": partial(compile_product, 1, zeros="float16"),
    "1 token, many outputs": partial(compile_product, 1, outputs=28672),
    "1 token, groups of 32": partial(compile_product, 1, group=32),
    "1 token, a scale a channel": partial(compile_product, 1, group=INPUTS),
    "1 token, table": partial(compile_product, 1, group=64, table=NF4),
    "1 token, f16": partial(compile_product, 1, dtype="float16"),
    "1 token, int8": partial(compile_product, 1, values="int8", group=INPUTS),
    "1 token, int8, many outputs": partial(compile_product, 1, values="int8", group=INPUTS, outputs=28672),
    "1 token, int8 in groups": partial(compile_product, 1, values="int8"),
    "1 token, uint8, zeros": partial(compile_product, 1, values="uint8", zeros="uint8"),
    "1 token, fp8": partial(compile_product, 1, values="float8_e4m3fn", group=INPUTS),
    "2 tokens": partial(compile_product, 2),
    "2 tokens, int8": partial(compile_product, 2, values="int8", group=INPUTS),
    "16 tokens": partial(compile_product, 16),
    "16 tokens, many outputs": partial(compile_product, 16, outputs=28672),
    "16 tokens, table": partial(compile_product, 16, group=64, table=NF4),
    "16 tokens, int8": partial(compile_product, 16, values="int8", group=INPUTS),
    "16 tokens, fp8": partial(compile_product, 16, values="float8_e4m3fn", group=INPUTS),
    "64 tokens": partial(compile_product, 64, zeros="uint8"),
    "64 tokens, table": partial(compile_product, 64, group=64, table=NF4),
    "64 tokens, fp8": partial(compile_product, 64, values="float8_e4m3fn"),
    "64 tokens, 99 KiB": partial(compile_product, 64, shared=99),
    "128 tokens": partial(compile_product, 128),
    "128 tokens, int8": partial(compile_product, 128, values="int8", group=INPUTS),
    "128 tokens, int8, splits that do not divide": partial(
        compile_product, 128, values="int8", group=11008, inputs=11008
    ),
    "128 tokens, int8, gated, many outputs": partial(
        compile_product, 128, values="int8", group=INPUTS, outputs=28672, gated=True
    ),
    "128 tokens, gated, many outputs": partial(compile_product, 128, outputs=28672, gated=True),
    "128 tokens, zeros, gated, many outputs": partial(compile_product, 128, zeros="uint8", outputs=28672, gated=True),
    "128 tokens, table, gated, many outputs": partial(
        compile_product, 128, group=64, table=NF4, outputs=28672, gated=True
    ),
    "128 tokens, int8 in groups, gated, many outputs": partial(
        compile_product, 128, values="int8", outputs=28672, gated=True
    ),
    "1 token, gated, many outputs": partial(compile_product, 1, outputs=28672, gated=True),
    "16 tokens, gated": partial(compile_product, 16, gated=True),
    "128 tokens, gated": partial(compile_product, 128, gated=True),
    "128 tokens, table, gated": partial(compile_product, 128, group=64, table=NF4, gated=True),
    "128 tokens, int8, many outputs": partial(compile_product, 128, values="int8", group=INPUTS, outputs=28672),
    "128 tokens, 99 KiB": partial(compile_product, 128, shared=99),
    "128 tokens, int8, 99 KiB": partial(compile_product, 128, values="int8", group=INPUTS, shared=99),
    "256 tokens": partial(compile_product, 256),
    "256 tokens, 99 KiB": partial(compile_product, 256, shared=99),
    "256 tokens, table, 99 KiB": partial(compile_product, 256, group=64, table=NF4, shared=99),
    "256 tokens, fp8, 99 KiB": partial(compile_product, 256, values="float8_e4m3fn", shared=99),
    "256 tokens, table": partial(compile_product, 256, group=64, table=NF4),
    "256 tokens, fp8": partial(compile_product, 256, values="float8_e4m3fn"),
    "2048 tokens, f32": partial(compile_product, 2048, dtype="float32"),
}

TWO_CHUNKS = 36864  # outputs: 32,768 of them, and 4,096
CHUNKS = {  # of which a chunk at a time is written out
    "int4": partial(compile_product, 2048),
    "two chunks": partial(compile_product, 2048, outputs=TWO_CHUNKS),
    "zeros": partial(compile_product, 2048, zeros="uint8"),
    "zeros that are not whole": partial(compile_product, 2048, zeros="float16"),
    "table": partial(compile_product, 2048, group=64, table=NF4),
    "f16": partial(compile_product, 2048, dtype="float16"),
    "int8": partial(compile_product, 2048, values="int8", group=INPUTS),
    "fp8": partial(compile_product, 2048, values="float8_e4m3fn", group=INPUTS),
}
B200S = {  # the tiles that take most
    "int4, groups of 32": partial(compile_product, 128, group=32, outputs=28672, gated=True, gpu=GPUS["b200"]),
    "table": partial(compile_product, 128, group=64, table=NF4, outputs=28672, gated=True, gpu=GPUS["b200"]),
    "int8": partial(compile_product, 128, values="int8", group=INPUTS, outputs=28672, gated=True, gpu=GPUS["b200"]),
    "int8 in groups": partial(compile_product, 128, values="int8", outputs=28672, gated=True, gpu=GPUS["b200"]),
}
KINDS = {"products": PRODUCTS, "chunks": CHUNKS, "b200": B200S}

if __name__ == "__main__":
    told = {kind: {name: make() for name, make in each.items()} for kind, each in KINDS.items()}
    Path(sys.argv[1]).write_text(json.dumps(told, indent=1))
