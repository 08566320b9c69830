"""The weights in a directory: one file or several with an index, safetensors before PyTorch's `.bin`; else ONNX."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from convert.errors import CheckpointError
from convert.formats.onnx import OnnxFile, find_onnx
from convert.formats.safetensors import SINGLE_FILE, SafetensorsFile
from convert.formats.tensors import Index, Tensors
from convert.formats.torch_bin import TorchFile


class TensorFile(Tensors, Protocol):
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True)
class Format:
    single: str
    index: str
    suffix: str
    open: Callable[[Path], TensorFile]


SAFETENSORS = Format(SINGLE_FILE, f"{SINGLE_FILE}.index.json", ".safetensors", SafetensorsFile)
TORCH = Format("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", TorchFile)
FORMATS = (SAFETENSORS, TORCH)
OF_OTHERS = ("adapter_", "medusa_")  # how files begin that may lie alone and are no model


class Shards(Tensors):
    """Several files as one set of tensors."""

    def __init__(self, files: list[TensorFile]) -> None:
        self._owner: dict[str, TensorFile] = {}
        for file in files:
            for name in file:
                if name in self._owner:
                    raise CheckpointError(f"{file.path.name}: tensor {name!r} is also in {self.where(name)}")
                self._owner[name] = file

    def __contains__(self, name: object) -> bool:
        return name in self._owner

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._owner[name].shape(name)

    def dtype(self, name: str) -> str:
        return self._owner[name].dtype(name)

    def where(self, name: str) -> str:
        return self._owner[name].path.name

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        return self._owner[name].read(name, view, index)


def has_tensors(directory: Path) -> bool:
    """Whether there is what `open_tensors` opens."""
    named = any((directory / name).is_file() for kind in FORMATS for name in (kind.single, kind.index))
    return named or _lone(directory) is not None or find_onnx(directory) is not None


def safetensors_names(directory: Path) -> list[str]:
    """The files that a checkpoint has by its index, whether they are in `directory` or not; else a single one."""
    index = directory / SAFETENSORS.index
    return sorted(set(_read_index(index, SAFETENSORS).values())) if index.is_file() else [SAFETENSORS.single]


def open_tensors(directory: Path) -> Shards:
    """The checkpoint in `directory`: the shards its index names, else its single file, else the only safetensors file,
    whatever its name, else an ONNX file.

    Raises:
        CheckpointError: there is none, or a shard is missing, malformed or not what the index says.
    """
    for kind in FORMATS:
        if (directory / kind.index).is_file() and not (directory / kind.single).is_file():
            return _open_index(directory / kind.index, kind)
        if (directory / kind.single).is_file():
            return Shards([kind.open(directory / kind.single)])
    if path := _lone(directory):
        return Shards([SafetensorsFile(path)])
    if path := find_onnx(directory):
        return Shards([OnnxFile(path)])
    wanted = " or ".join(f"{kind.single} or its index" for kind in FORMATS)
    raise CheckpointError(f"{directory}: no {wanted} or .onnx file")


def _lone(directory: Path) -> Path | None:
    """AutoGPTQ, for one, called its files `gptq_model-4bit-128g.safetensors`."""
    files = [path for path in directory.glob("*.safetensors") if not path.name.startswith(OF_OTHERS)]
    return files[0] if len(files) == 1 else None


def _open_index(index: Path, kind: Format) -> Shards:
    placed = _read_index(index, kind)
    directory, shards = index.parent, sorted(set(placed.values()))
    if missing := [name for name in shards if not (directory / name).is_file()]:
        raise CheckpointError(f"{index}: {len(missing)} shard(s) missing: {', '.join(missing[:4])}")
    tensors = Shards([kind.open(directory / name) for name in shards])
    for name, shard in placed.items():
        if name not in tensors or tensors.where(name) != shard:
            raise CheckpointError(f"{index}: tensor {name!r} is not in {shard}, where the index places it")
    return tensors


def _read_index(path: Path, kind: Format) -> dict[str, str]:
    try:
        placed = json.loads(path.read_bytes())["weight_map"]
        valid = all(Path(shard).name == shard and shard.endswith(kind.suffix) for shard in placed.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not an index: needs a weight_map of tensor to file ({error})") from error
    if not placed or not valid:
        raise CheckpointError(f"{path}: weight_map must name {kind.suffix} files beside the index")
    return dict(placed)
