"""Layers of experts compiled for an H200 that is not there, as the engine calls them. Run by `toolchain.run`."""

import dataclasses
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from convert.quantized.mxfp4 import FORMAT as MXFP4
from jaxengine.architecture.model import Experts, LayerKind, ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.model.moe import MixtureOfExperts
from jaxengine.sharding import make_mesh, replicated
from jaxengine.weights.loading import abstract_parameters
from jaxengine.weights.quantization import chosen_formats
from tests.gpu_compile import h200, thunks
from tests.gpu_compile.ptxas import kernel
from tests.shapes import GPT_OSS_20B, H200


def model(hidden: int, experts: Experts) -> ModelSpec:
    kinds = (LayerKind(experts=True),)
    return ModelSpec(256, hidden, 1, 8, 8, 128, 256, 4096, kinds=kinds, experts=experts)


MIXTRAL = model(4096, Experts(8, 2, 14336, renormalise=True))  # Mixtral-8x7B
QWEN3 = model(2048, Experts(128, 8, 768, renormalise=True))  # Qwen3-30B-A3B
GPT_OSS_TP8 = dataclasses.replace(GPT_OSS_20B, experts=Experts(32, 4, 8 * 384, renormalise=True, bias=True))
MODELS = {"mixtral": MIXTRAL, "qwen3": QWEN3, "gpt-oss": GPT_OSS_20B}
ZEROS = WeightFormat("codes with zeros", "uint8", "float16", "uint8", 128, bits=4)  # GPTQ, AWQ
BLOCKS = WeightFormat("fp8 in blocks", "float8_e4m3fn", "float32", group=128)


def compile_layer(
    spec: ModelSpec,
    tokens: int,
    devices: int = 1,
    dtype: str = "bfloat16",
    quantize: str | None = None,
    stored: WeightFormat | None = None,
) -> dict[str, Any]:
    """A layer with experts as the engine makes them of floats, or as a checkpoint stores them."""
    mesh = make_mesh(devices, h200.devices(devices))
    formats = chosen_formats(spec, quantize, devices)
    if stored:
        formats = {name: stored for name in parameter_table(spec) if "experts_" in name}
    table = abstract_parameters(spec, mesh, dtype, H200, formats)
    module = MixtureOfExperts(spec, lambda name: table.get(f"layers.0.{name}"))
    x = jax.ShapeDtypeStruct((tokens, spec.hidden_size), jnp.dtype(dtype), sharding=replicated(mesh))
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    with jax.set_mesh(mesh):
        lowered = jax.jit(lambda module, x, tokens: module(x, tokens), out_shardings=replicated(mesh)).lower(
            module, x, count
        )
    layer = h200.facts(lowered, (), COMPILER_OPTIONS["gpu"])
    return {"layer": dataclasses.asdict(layer), "kernels": h200.once(kernels, lowered, {})}


def kernels(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        lowered.compile(compiler_options={**options, **h200.dumping(dump)})
        sequence = thunks.read(Path(dump))
        ours = [path for path in Path(dump).glob("*.ptx") if "experts_" in path.read_text()]
        return {name: dataclasses.asdict(found) for name, found in (kernel(path, sequence) for path in ours)}


LAYERS = {
    "mixtral, 1 token": partial(compile_layer, MIXTRAL, 1),
    "mixtral, 2048 tokens": partial(compile_layer, MIXTRAL, 2048),
    "qwen3, 16 tokens": partial(compile_layer, QWEN3, 16),
    "qwen3, 128 tokens": partial(compile_layer, QWEN3, 128),
    "qwen3, 1024 tokens": partial(compile_layer, QWEN3, 1024),
    "qwen3, 128 tokens, 8 devices": partial(compile_layer, QWEN3, 128, 8),
    "qwen3, 1024 tokens, f32": partial(compile_layer, QWEN3, 1024, dtype="float32"),
    "mixtral, 1 token, int8": partial(compile_layer, MIXTRAL, 1, quantize="int8"),
    "mixtral, 2048 tokens, fp8": partial(compile_layer, MIXTRAL, 2048, quantize="fp8"),
    "qwen3, 16 tokens, fp8": partial(compile_layer, QWEN3, 16, quantize="fp8"),
    "mixtral, 128 tokens, int8, 8 devices": partial(compile_layer, MIXTRAL, 128, 8, quantize="int8"),
    "mixtral, 1 token, int4": partial(compile_layer, MIXTRAL, 1, quantize="int4"),
    "mixtral, 2048 tokens, int4": partial(compile_layer, MIXTRAL, 2048, quantize="int4"),
    "mixtral, 128 tokens, int4, 8 devices": partial(compile_layer, MIXTRAL, 128, 8, quantize="int4"),
    "qwen3, 16 tokens, int4": partial(compile_layer, QWEN3, 16, quantize="int4"),
    "qwen3, 1024 tokens, int4": partial(compile_layer, QWEN3, 1024, quantize="int4"),
    "mixtral, 1 token, nf4": partial(compile_layer, MIXTRAL, 1, quantize="nf4"),
    "mixtral, 2048 tokens, nf4": partial(compile_layer, MIXTRAL, 2048, quantize="nf4"),
    "mixtral, 1 token, codes with zeros": partial(compile_layer, MIXTRAL, 1, stored=ZEROS),
    "mixtral, 2048 tokens, codes with zeros": partial(compile_layer, MIXTRAL, 2048, stored=ZEROS),
    "qwen3, 16 tokens, mxfp4": partial(compile_layer, QWEN3, 16, stored=MXFP4),
    "gpt-oss, 16 tokens": partial(compile_layer, GPT_OSS_20B, 16),
    "gpt-oss, 2048 tokens": partial(compile_layer, GPT_OSS_20B, 2048),
    "gpt-oss, 1 token, mxfp4": partial(compile_layer, GPT_OSS_20B, 1, stored=MXFP4),
    "gpt-oss, 16 tokens, mxfp4": partial(compile_layer, GPT_OSS_20B, 16, stored=MXFP4),
    "gpt-oss, 2048 tokens, mxfp4": partial(compile_layer, GPT_OSS_20B, 2048, stored=MXFP4),
    "gpt-oss, 128 tokens, 8 devices": partial(compile_layer, GPT_OSS_TP8, 128, 8),
    "gpt-oss, 128 tokens, 8 devices, mxfp4": partial(compile_layer, GPT_OSS_TP8, 128, 8, stored=MXFP4),
    "qwen3, 16 tokens, fp8 in blocks": partial(compile_layer, QWEN3, 16, stored=BLOCKS),
    "qwen3, 1024 tokens, fp8 in blocks": partial(compile_layer, QWEN3, 1024, stored=BLOCKS),
    "qwen3, 1024 tokens, int4 in f32": partial(compile_layer, QWEN3, 1024, dtype="float32", quantize="int4"),
}

if __name__ == "__main__":
    made = {name: layer() for name, layer in LAYERS.items()}
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1))
