"""ONNX files as checkpoints: the parameters of the model that was exported, in PyTorch's names and layout.

Weights are read in place, from the file or from those beside it that hold its external data; a linear layer's is the
transpose of what is stored. Graphs are never computed, and quantised ones are refused.
"""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from convert.errors import CheckpointError
from convert.formats.memory_map import memory_map
from convert.formats.onnx_graph import Constant, Graph, read_graph
from convert.formats.onnx_names import parameters
from convert.formats.tensors import Index, Tensors

# Files as optimum names them; the first that is there is read. The other ends are those of external data.
STEMS = ("model", "decoder_model", "decoder_model_merged")
FOLDERS = ("", "onnx/")  # of the checkpoint's directory
ENDS = (".onnx", ".onnx_data*", ".onnx.data")
SHOWN, FEW = 80, 4  # characters of a name, and names, in an error
# Operations of ONNX and of onnxruntime.
QUANTIZED = r"(Dynamic)?Quantize|Dequantize|Q[A-Z]|.*(Integer|NBits|Bnb4|FpQ4|BlockQuantized)$"


def find_onnx(directory: Path) -> Path | None:
    """The ONNX file of a checkpoint's directory, in it or in its folder `onnx`: one of `STEMS`, or else the only one.

    Raises:
        CheckpointError: there are several others.
    """
    known = [directory / f"{folder}{stem}{ENDS[0]}" for folder in FOLDERS for stem in STEMS]
    others = [path for folder in FOLDERS for path in sorted((directory / folder).glob(f"*{ENDS[0]}"))]
    found = [path for path in known if path.is_file()] or [path for path in others if path.is_file()]
    if len(found) > 1 and found[0] not in known:
        names = ", ".join(path.name for path in found[:4])
        raise CheckpointError(f"{directory}: {len(found)} .onnx files, none of them {known[0].name}: {names}")
    return found[0] if found else None


class OnnxFile(Tensors):
    """The parameters in one file, checked on construction and mapped read-only.

    Raises:
        CheckpointError: the file is cut, malformed or quantised, a parameter has no name, or its data is elsewhere than
            beside the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            graph = read_graph(memoryview(memory_map(path)))
        except ValueError as error:
            raise _refusal(path, error, "; it cannot be read as an ONNX file of weights") from error
        try:
            _refuse_quantized(graph)
            self._stored = parameters(graph)
            external = _ExternalData(path)
            names = {stored.name for stored in self._stored.values()}
            self._arrays = {name: _array(name, graph.constants[name], external) for name in names}
        except ValueError as error:
            raise _refusal(path, error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array(name).shape

    def dtype(self, name: str) -> str:
        return self._array(name).dtype.name

    def where(self, name: str) -> str:
        return self.path.name

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        return self._array(name).reshape(view)[index]

    def _array(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        array = self._arrays[stored.name]
        return array.T if stored.swapped else array


def _refusal(path: Path, error: ValueError, end: str = "") -> CheckpointError:
    return error if isinstance(error, CheckpointError) else CheckpointError(f"{path.name}: {error}{end}")


def _refuse_quantized(graph: Graph) -> None:
    found = sorted({node.op for node in graph.nodes if re.match(QUANTIZED, node.op)})
    if found:
        shown = ", ".join(f"{op[:SHOWN]!a}" for op in found[:FEW])
        raise ValueError(f"it is quantised, by {shown}; name the checkpoint that it was made of")


def _array(name: str, constant: Constant, external: "_ExternalData") -> np.ndarray:
    """The mapped elements of a constant. Raises ValueError unless they are as many as its shape says."""
    name = name[:SHOWN]
    if constant.dtype is None:
        raise ValueError(f"tensor {name!r} has a type that is not read")
    expected = math.prod(constant.shape) * constant.dtype.itemsize
    data = external.read(name, constant.external, expected) if constant.external else constant.data
    if len(data) != expected:
        raise ValueError(f"tensor {name!r} of shape {list(constant.shape)} takes {expected} bytes, has {len(data)}")
    return np.frombuffer(data, constant.dtype).reshape(constant.shape)


class _ExternalData:
    """Files beside an ONNX file, each mapped once.

    A path in a file from elsewhere could lead anywhere. It must stay in the directory of the ONNX file, links followed;
    in a snapshot of the hub's cache, where every file is a link, it may lead to that repository's `blobs`.
    """

    def __init__(self, model: Path) -> None:
        self._directory = model.parent
        snapshots = next((parent for parent in model.absolute().parents if parent.name == "snapshots"), None)
        self._roots = [model.parent.resolve(), *([(snapshots.parent / "blobs").resolve()] if snapshots else [])]
        self._maps: dict[Path, memoryview] = {}

    def read(self, name: str, entries: dict[str, str], expected: int) -> memoryview:
        """The bytes of tensor `name`. Raises ValueError, CheckpointError."""
        offset = _number(name, "offset", entries.get("offset", "0"))
        size = _number(name, "length", entries["length"]) if "length" in entries else expected
        location = entries.get("location", "")
        data = self._map(name, location)
        if offset + size > len(data):
            place = f"{size} bytes from {offset} on of {location!r}"
            raise ValueError(f"tensor {name!r} lies in {place}, which has {len(data)}")
        return data[offset : offset + size]

    def _map(self, name: str, location: str) -> memoryview:
        relative = Path(location.replace("\0", ""))
        path = Path(os.path.realpath(self._directory / relative))
        outside = relative.is_absolute() or ".." in relative.parts or not any(map(path.is_relative_to, self._roots))
        if not location or outside:
            raise ValueError(f"tensor {name!r} lies in {location[:SHOWN]!r}, which is not beside it")
        if not os.path.isfile(path):
            raise ValueError(f"tensor {name!r} lies in {location[:SHOWN]!r}, which is missing")
        if path not in self._maps:
            self._maps[path] = memoryview(memory_map(path))
        return self._maps[path]


def _number(name: str, key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"tensor {name!r} has {key} {text[:40]!r}")
    return int(text)
