"""A checkpoint for other programs: safetensors under the names that its authors gave, config.json, and what goes along.

It appears at once, when all of it is written.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from convert.cache import new_directory, require_space, sync
from convert.checkpoint import DTYPES, MANIFEST, SPEC
from convert.config.pooling import SETTINGS as POOLING
from convert.config.quantization import FILES
from convert.errors import CheckpointError
from convert.formats.shard_writer import ShardWriter
from convert.formats.tensors import Tensors, whole
from convert.original import Original

SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # of files that go with any weights
LICENCES = ("LICENSE", "NOTICE", "USE_POLICY")
OF_WEIGHTS = ("config.json", MANIFEST, SPEC, *FILES)  # and indices


@contextmanager
def written(
    original: Original, target: Path, needed: int, settings: dict[str, Any], files: dict[str, dict[str, Any]]
) -> Iterator[ShardWriter]:
    """A checkpoint at `target` of the tensors that the block writes. It appears when the block ends well.

    Args:
        needed: bytes of the tensors.
        settings: added to config.json.
        files: other files of JSON, by their names.

    Raises:
        CheckpointError: the disk is too small or fails.
    """
    require_space(target, needed)
    with new_directory(target) as directory:
        writer = ShardWriter(directory)
        yield writer
        writer.close()
        for path in (path for files in original.files for path in files.iterdir()):
            if path.is_file() and _goes_along(path.name):
                shutil.copyfile(path, directory / path.name)
        for path in (files / POOLING for files in original.files if (files / POOLING).is_file()):
            (directory / POOLING).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, directory / POOLING)
        for name, values in {"config.json": {**original.config, **settings}, **files}.items():
            (directory / name).write_text(json.dumps(values, indent=2, ensure_ascii=False), "utf-8")
        for path in directory.rglob("*"):
            sync(path)


def _goes_along(name: str) -> bool:
    of_weights = name in OF_WEIGHTS or name.endswith(".index.json")
    return name.startswith(LICENCES) or (name.endswith(SUFFIXES) and not of_weights)


def read_whole(tensors: Tensors, name: str) -> np.ndarray:
    """A tensor in the type that `tensors` says. Raises CheckpointError where a value is too large for it."""
    values = whole(tensors, name)
    with np.errstate(over="ignore"):
        cast = values.astype(DTYPES.get(tensors.dtype(name), values.dtype), copy=False)
    if np.issubdtype(cast.dtype, np.floating) and np.isinf(cast).any() and not np.isinf(values).any():
        raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} has values that {cast.dtype} cannot hold")
    return cast
