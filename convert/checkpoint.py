"""Our own checkpoint on disk: parameters in the engine's names and layout, ready to map.

    model.safetensors   every parameter of `parameter_table(spec)`, in its layout
    spec.json           the `ModelSpec`
    tokenizer files     copied from the source; of a model that sees, its configuration and its picture processor's too
    manifest.json       size and sha256 of each file; written last, so it alone proves that the rest is complete

Sizes are compared with the manifest at every start. Contents are compared once, and the result is remembered until a
file changes.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from convert.cache import has_sha256, new_directory, require_space, sha256, sync
from convert.config.config import Config, read_json
from convert.errors import CheckpointError
from convert.formats.safetensors import SINGLE_FILE, SafetensorsFile, encode_header
from convert.mapping.composition import ComposedSource
from convert.mapping.recipes import identity
from convert.progress import Progress
from convert.tokenizer.tokenizer import gateway_files
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table

VERSION = 18  # of this layout, `ModelSpec` and `parameter_table` included; other versions are refused
MANIFEST = "manifest.json"
SPEC = "spec.json"
CHUNK = 64 * 2**20  # bytes of f32 held at once while converting
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def written_dtype(source: ParameterSource, dtype: str | None) -> str:
    """`dtype`, or the source's own for None. Raises CheckpointError where it is none that is written."""
    kept = dtype or source.dtype
    if kept not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {kept!r}")
    return kept


def write_checkpoint(
    source: ParameterSource,
    files: Path,
    target: Path,
    *,
    dtype: str | None = None,
    origin: dict[str, str] | None = None,
) -> None:
    """Convert `source` to a checkpoint at `target`, with the tokenizer files found in `files`.

    `dtype` is "float32", "bfloat16" or "float16"; None keeps the source's own. A parameter that has its own keeps it.
    Memory stays below a few chunks.

    Raises:
        CheckpointError: the disk is too small or fails, or a value does not fit `dtype`; nothing is left behind.
    """
    kept = written_dtype(source, dtype)
    arrays = {name: (each.dtype or kept, each.shape) for name, each in parameter_table(source.spec).items()}
    total = sum(math.prod(shape) * DTYPES[own].itemsize for own, shape in arrays.values())
    require_space(target, total)
    with new_directory(target) as directory:
        digests = {SINGLE_FILE: _write_parameters(source, arrays, directory / SINGLE_FILE, total)}
        (directory / SPEC).write_text(source.spec.to_json())
        for name in gateway_files(source.spec.vision is not None):
            if (files / name).is_file():
                shutil.copyfile(files / name, directory / name)
        _write_manifest(directory, digests, origin or {})


def open_checkpoint(directory: Path, verified: Path) -> ComposedSource:
    """The parameters of a checkpoint that `write_checkpoint` made.

    `verified` is a directory that remembers which files passed the full sha256 check, by inode, size and time.

    Raises:
        CheckpointError: a file is missing, or differs from the manifest in size or sha256.
    """
    manifest = read_json(directory / MANIFEST)
    if manifest.get("version") != VERSION or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(f"{directory / MANIFEST}: version must be {VERSION}, got {manifest.get('version')!r}")
    if missing := {SINGLE_FILE, SPEC} - manifest["files"].keys():
        raise CheckpointError(f"{directory / MANIFEST}: does not list {', '.join(sorted(missing))}")
    for name, entry in manifest["files"].items():
        if Path(name).name != name:
            raise CheckpointError(f"{directory / MANIFEST}: {name!r} is not the name of a file beside it")
        _verify(directory / name, entry, verified)
    try:
        spec = ModelSpec.from_json((directory / SPEC).read_text())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{directory / SPEC}: not a model specification: {error}") from error
    return ComposedSource(spec, SafetensorsFile(directory / SINGLE_FILE), identity(spec))


def origin(directory: Path) -> dict[str, str]:
    """Where the checkpoint came from: model_id and revision; and its `pooling`."""
    found = Config.load(directory / MANIFEST).section("origin")
    return {key: str(value) for key, value in found.values.items()} if found else {}


def _write_parameters(
    source: ParameterSource, arrays: dict[str, tuple[str, tuple[int, ...]]], path: Path, total: int
) -> str:
    """Write the safetensors file at `path`, with the dtypes and shapes of `arrays`; returns its sha256."""
    header = encode_header(arrays)
    digest = hashlib.sha256(header)
    with (
        path.open("wb") as file,
        Progress(total=total, unit="B", unit_scale=True, desc="converting") as bar,
    ):
        file.write(header)
        for name, (dtype, shape) in arrays.items():
            for index in _chunks(shape):
                data = cast(source.read(name, index), dtype, name).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)
                bar.update(data.nbytes)
        _flush(file)
    return digest.hexdigest()


def _chunks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Ranges of the first axis of about `CHUNK` bytes of f32 each."""
    rows = max(1, CHUNK // (4 * math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield (slice(start, min(start + rows, shape[0])),)


def cast(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """`values` as `dtype`, contiguous. Raises CheckpointError where a finite value overflows float16."""
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(values).astype(DTYPES[dtype], copy=False)
    if dtype == "float16" and values.dtype != made.dtype and np.isinf(made).any() and not np.isinf(values).any():
        raise CheckpointError(f"parameter {name!r} has values beyond float16's 65504; convert to bfloat16")
    return made


def _write_manifest(directory: Path, digests: dict[str, str], origin: dict[str, str]) -> None:
    files = {}
    for path in sorted(directory.iterdir()):
        digest = digests.get(path.name) or sha256(path)
        files[path.name] = {"size": path.stat().st_size, "sha256": digest}
        sync(path)
    temporary = directory / f".{MANIFEST}"
    temporary.write_text(json.dumps({"version": VERSION, "origin": origin, "files": files}, indent=1))
    sync(temporary)
    temporary.rename(directory / MANIFEST)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _verify(path: Path, entry: Any, verified: Path) -> None:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path.parent / MANIFEST}: entry of {path.name!r} is malformed")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: named in {MANIFEST} but cannot be read: {error.strerror}") from error
    if size != entry.get("size"):
        raise CheckpointError(f"{path}: has {size} bytes, {MANIFEST} says {entry.get('size')}")
    if not has_sha256(path, str(entry.get("sha256")), verified):
        raise CheckpointError(f"{path}: contents differ from the sha256 in {MANIFEST}; convert the checkpoint again")
