"""`text-generation-server export`: a model → one program of StableHLO, its weights, and what to know to run it.

The fourth place where engine and converters meet: `convert` reads and writes, JAX lowers the engine's own layers. The
program takes whole texts and keeps nothing between calls. Weights are its arguments: as constants they would be copied
into each of its forms. Nothing is compiled, no device is used, and shapes may stay symbols.

    model.jax_export    the program for JAX, which fills in shapes when it is called (`jax.export.deserialize`)
    model.stablehlo     the same program as portable MLIR bytecode, for compilers that read StableHLO
    *.safetensors       the weights, by name, in the engine's layout
    program.json        inputs in order, output, versions, sizes of the model; written last
    tokenizer files     copied from the source
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.export import Exported, export, symbolic_shape

from convert.cache import new_directory, require_space
from convert.checkpoint import cast, written_dtype
from convert.errors import USAGE, CheckpointError
from convert.formats.shard_writer import ShardWriter
from convert.progress import Progress
from convert.source import OpenModel
from convert.tokenizer.tokenizer import TOKENIZER_FILES
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.model.whole_texts import abstract_weights, text_logits, unsupported

PLATFORMS = ("cpu", "cuda")  # the program's first input is one's number here
FOR_JAX, BYTECODE, MANIFEST = "model.jax_export", "model.stablehlo", "program.json"
VERSION = 1  # of the manifest
MAX_TOKENS = 2**31 - 1  # the program counts them in i32
LEFT_OUT = "jax_hlo_source_file_canonicalization_regex"  # of the names of source files in a program
ARGUMENTS = ("ids", "attention_mask")  # behind the weights

Sizes = tuple[int | None, int | None]  # texts, and tokens of each; None for any number


def export_program(model: OpenModel, target: Path, dtype: str | None = None, sizes: Sizes = (None, None)) -> None:
    """Write the program of `model` to `target`.

    Args:
        dtype: of the weights and of what is computed with them, "float32", "bfloat16" or "float16"; None keeps the
            checkpoint's own.

    Raises:
        CheckpointError: the model is no function of whole texts, a text would be too long for it, a value does not fit
            `dtype`, or the disk is too small.
    """
    source, spec = model.source, replace(model.source.spec, vision=None)  # a program of texts
    if what := unsupported(spec):
        raise CheckpointError(f"export: {model.model_id} has {what}, which is not supported", exit_code=USAGE)
    if (sizes[0] or 1) * (sizes[1] or 1) > MAX_TOKENS:
        problem = f"must be at most {MAX_TOKENS} tokens together, got {sizes[0]} x {sizes[1] or 'any'}"
        raise CheckpointError(f"--batch-size and --sequence-length {problem}", exit_code=USAGE)
    if (sizes[1] or 0) > spec.max_positions:
        problem = f"must be at most {spec.max_positions}, the model's positions, got {sizes[1]}"
        raise CheckpointError(f"--sequence-length {problem}", exit_code=USAGE)
    kept = written_dtype(source, dtype)
    weights = abstract_weights(spec, kept)
    require_space(target, sum(math.prod(each.shape) * each.dtype.itemsize for each in weights.values()))
    exported = lowered(spec, kept, sizes)
    with new_directory(target) as directory:
        _write_weights(source, weights, directory)
        (directory / FOR_JAX).write_bytes(exported.serialize())
        (directory / BYTECODE).write_bytes(exported.mlir_module_serialized)
        for name in TOKENIZER_FILES:
            if (model.directory / name).is_file():
                shutil.copyfile(model.directory / name, directory / name)
        (directory / MANIFEST).write_text(json.dumps(_manifest(model, exported), indent=1, ensure_ascii=False), "utf-8")


def lowered(spec: ModelSpec, dtype: str, sizes: Sizes) -> Exported:
    """The program `(weights by name, ids [b, s], mask [b, s]) → logits f32 [b, s, tokens]` for all `PLATFORMS`."""
    names = ", ".join(str(size or name) for size, name in zip(sizes, ("batch", "sequence"), strict=True))
    constraints = () if sizes[1] else (f"sequence <= {spec.max_positions}",)
    text = jax.ShapeDtypeStruct(symbolic_shape(names, constraints=constraints), jnp.int32)

    def logits(weights: dict[str, jax.Array], ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
        return text_logits(spec, weights, ids, attention_mask)

    with _file_names_alone():
        return export(jax.jit(logits), platforms=PLATFORMS)(abstract_weights(spec, dtype), text, text)


@contextmanager
def _file_names_alone() -> Iterator[None]:
    """A program says of each operation which line of source made it: then without the directories of this machine."""
    before = getattr(jax.config, LEFT_OUT)
    jax.config.update(LEFT_OUT, ".*/")
    try:
        yield
    finally:
        jax.config.update(LEFT_OUT, before)


def _write_weights(source: ParameterSource, weights: dict[str, jax.ShapeDtypeStruct], directory: Path) -> None:
    writer = ShardWriter(directory)
    for name, shape in Progress(weights.items(), unit="array", desc="exporting"):
        writer.add(name, cast(source.read(name, ()), shape.dtype.name, name))
    writer.close()


def _manifest(model: OpenModel, exported: Exported) -> dict[str, Any]:
    spec = model.source.spec
    sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_positions")
    return {
        "version": VERSION,
        "format": "stablehlo",
        "platforms": list(exported.platforms),
        "jax": jax.__version__,
        "stablehlo": _stablehlo_version(exported.mlir_module_serialized),
        "calling_convention_version": exported.calling_convention_version,
        "inputs": _inputs(exported),
        "outputs": [_described("logits", exported.out_avals[0])],
        "model": {
            "model_id": model.model_id,
            "revision": model.revision,
            **{name: getattr(spec, name) for name in sizes},
            "eos_token_ids": list(model.eos_token_ids),
        },
    }


def _inputs(exported: Exported) -> list[dict[str, Any]]:
    """Of the bytecode, in order. What an `Exported` is called with lacks the first."""
    weights, *_ = jax.tree.unflatten(exported.in_tree, exported.in_avals)[0]
    names = [*sorted(weights), *ARGUMENTS]  # as JAX flattens a dictionary
    kept = [_described(names[i], exported.in_avals[i]) for i in exported.module_kept_var_idx]
    return [{"name": "platform", "dtype": "int32", "shape": []}, *kept]


def _described(name: str, array: Any) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else str(size) for size in array.shape]
    return {"name": name, "dtype": array.dtype.name, "shape": shape}


def _stablehlo_version(bytecode: bytes) -> str:
    """The producer that MLIR's bytecode names at its beginning."""
    found = re.match(rb"ML\xefR.StableHLO_v([\d.]+)\x00", bytecode, re.DOTALL)
    return found[1].decode() if found else ""
