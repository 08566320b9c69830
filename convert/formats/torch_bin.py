"""PyTorch's `.bin` files, without PyTorch and without running what is in them: weights only, mapped, by slice.

A file holds a pickle that describes tensors, and the storages of which the tensors are views. Since PyTorch 1.6 both
lie in an uncompressed zip archive, so storages are read in place like safetensors; before 1.6 the storages followed the
pickle. The tar files of PyTorch 0.1 are refused. Every view is compared with the bytes of its storage before the first
read, and views whose elements overlap, which could unfold a small file to any size, are refused.
Layout: https://github.com/pytorch/pytorch/blob/v2.9.0/torch/serialization.py
"""

import io
import mmap
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from convert.errors import CheckpointError
from convert.formats.memory_map import memory_map
from convert.formats.pickle_reader import Build, Global, UnpicklingError, unpickle
from convert.formats.tensors import MAX_DIMS, MAX_TENSORS, NAME_PATTERN, Index, Tensors

MAX_PICKLE = 64 * 2**20
LOCAL_HEADER = 30  # bytes before the name of a zip member; the lengths of name and extra field are its last four
ZIP_MAGIC, LEGACY_MAGIC, LEGACY_PROTOCOL = b"PK\x03\x04", 0x1950A86A20F9469CFC6C, 1001
DTYPES: dict[str, np.dtype[Any]] = {
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.BoolStorage": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Storage:
    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class View:
    """A tensor: `shape` and `strides`, in elements, of a storage from its element `offset` on."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the last element that is read."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))

    @property
    def overlaps(self) -> bool:
        """Whether two elements of the tensor may be the same stored element."""
        reach = 1
        for step, size in sorted((step, size) for step, size in zip(self.strides, self.shape, strict=True) if size > 1):
            if step < reach:
                return True
            reach = step * (size - 1) + reach
        return False


class TorchFile(Tensors):
    """The tensors of one file, checked on construction and mapped read-only, or copied.

    Args:
        called: how messages name it: by its name alone unless told.

    Raises:
        CheckpointError: the file is cut or malformed, or its pickle holds anything but named tensors.
    """

    def __init__(self, path: Path, *, copied: bool = False, called: str = "") -> None:
        self.path = path
        self._called = called or path.name
        self._data = memory_map(path, copied=copied)
        try:
            archive = self._data[:4] == ZIP_MAGIC
            state, self._storages = _read_zip(self._data) if archive else _read_legacy(self._data)
            self._views = _named(state)
            for name, view in self._views.items():
                _check(name, view, self._storages)
        except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError, struct.error) as error:
            raise CheckpointError(f"{self._called}: {error}; not a PyTorch file of weights") from error

    def __contains__(self, name: object) -> bool:
        return name in self._views

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._views[name].shape

    def dtype(self, name: str) -> str:
        return self._views[name].storage.dtype.name

    def where(self, name: str) -> str:
        return self._called

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        tensor = self._views[name]
        dtype, (start, _) = tensor.storage.dtype, self._storages[tensor.storage.key]
        first, last = (start + element * dtype.itemsize for element in (tensor.offset, tensor.end))
        flat = np.frombuffer(self._data, np.uint8, last - first, first).view(dtype)
        steps = [step * dtype.itemsize for step in tensor.strides]
        whole = np.lib.stride_tricks.as_strided(flat, tensor.shape, steps, writeable=False)
        return whole.reshape(view)[index]


Ranges = dict[str, tuple[int, int]]  # of each storage, first byte and one past the last


def _read_zip(data: mmap.mmap) -> tuple[Any, Ranges]:
    members = _members(data)
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl" and name.count("/") == 1]
    if len(pickles) != 1:
        raise UnpicklingError(f"{len(pickles)} members named data.pkl")
    root = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{root}byteorder")
    if order is not None and data[slice(*order)] != b"little":
        raise UnpicklingError("byte order is not little-endian")
    start, end = members[pickles[0]]
    if end - start > MAX_PICKLE:
        raise UnpicklingError(f"data.pkl has {end - start} bytes, at most {MAX_PICKLE}")
    state = unpickle(io.BytesIO(data[start:end]), BUILD, _storage)
    prefix = f"{root}data/"
    return state, {name.removeprefix(prefix): span for name, span in members.items() if name.startswith(prefix)}


def _members(data: mmap.mmap) -> Ranges:
    """The byte range of each member. Raises where a member is compressed, encrypted, there twice or over another."""
    source: Any = data  # a mapped file has all that a file needs here
    with zipfile.ZipFile(source) as archive:
        infos = archive.infolist()
    if len(infos) > MAX_TENSORS:
        raise UnpicklingError(f"{len(infos)} members, at most {MAX_TENSORS}")
    members: Ranges = {}
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.filename in members:
            raise UnpicklingError(f"member {info.filename[:80]!r} is compressed, encrypted or there twice")
        header = info.header_offset
        name, extra = struct.unpack("<HH", data[header + LOCAL_HEADER - 4 : header + LOCAL_HEADER])
        start = header + LOCAL_HEADER + name + extra
        members[info.filename] = (start, start + info.file_size)
    position = 0
    for name, (start, end) in sorted(members.items(), key=lambda item: item[1]):
        if start < position or end > len(data):
            raise UnpicklingError(f"member {name[:80]!r} overlaps another or the end of the file")
        position = end
    return members


def _read_legacy(data: mmap.mmap) -> tuple[Any, Ranges]:
    """Five pickles: magic number, protocol, the machine, the tensors, the keys of storages; then those in turn."""
    file = io.BytesIO(data[:MAX_PICKLE])
    if unpickle(file, {}) != LEGACY_MAGIC or unpickle(file, {}) != LEGACY_PROTOCOL:
        raise UnpicklingError("neither a zip archive nor PyTorch's format before 1.6")
    machine = unpickle(file, {})
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise UnpicklingError("byte order is not little-endian")
    sizes: dict[str, int] = {}
    state = unpickle(file, BUILD, partial(_storage, sizes=sizes))
    keys = unpickle(file, {})
    if not isinstance(keys, list) or any(not isinstance(key, str) or key not in sizes for key in keys):
        raise UnpicklingError("the list of storages does not fit the tensors")
    ranges, position = {}, file.tell()
    for key in keys:
        (count,) = struct.unpack("<q", data[position : position + 8])
        ranges[key] = (position + 8, position + 8 + count * sizes[key])
        position = ranges[key][1]
        if count < 0 or position > len(data):
            raise UnpicklingError(f"storage {key[:80]!r} of {count} elements does not fit the file: truncated")
    return state, ranges


def _storage(id: Any, sizes: dict[str, int] | None = None) -> Storage:
    """A persistent id is ("storage", type, key, device, elements); older files add a view, which must be None."""
    kind, key = id[1], id[2]
    if id[0] != "storage" or not isinstance(kind, Global) or not isinstance(key, str) or id[5:] not in ((), (None,)):
        raise UnpicklingError("a persistent id that is not a storage's")
    dtype = DTYPES.get(kind.name)
    if dtype is None:
        raise UnpicklingError(f"storages of {kind.name} are not supported")
    if sizes is not None:
        sizes[key] = dtype.itemsize
    return Storage(key, dtype)


def _view(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> View:
    if not isinstance(storage, Storage) or len(shape) != len(strides) or len(shape) > MAX_DIMS:
        raise UnpicklingError("a tensor is badly described")
    if not all(type(number) is int and 0 <= number < 2**63 for number in (offset, *shape, *strides)):
        raise UnpicklingError("a tensor's offset, shape or strides are out of range")
    return View(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


BUILD: dict[str, Build | None] = {  # storage types are named, never called
    "collections.OrderedDict": lambda: {},  # noqa: PIE807 - dict would take arguments
    "torch._utils._rebuild_tensor": _view,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_parameter": _parameter,
    **dict.fromkeys(DTYPES),
}


def _named(state: Any) -> dict[str, View]:
    if not isinstance(state, dict) or not state:
        raise UnpicklingError("holds no dictionary of tensors")
    if len(state) > MAX_TENSORS:
        raise UnpicklingError(f"{len(state)} tensors, at most {MAX_TENSORS}")
    for name, value in state.items():
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            raise UnpicklingError(f"tensor name {str(name)[:80]!r} is not allowed")
        if not isinstance(value, View):
            raise UnpicklingError(f"{name!r} is a {type(value).__name__}, not a tensor")
    return state


def _check(name: str, view: View, storages: Ranges) -> None:
    if view.storage.key not in storages:
        raise UnpicklingError(f"tensor {name!r} lies in storage {view.storage.key[:80]!r}, which is missing")
    start, end = storages[view.storage.key]
    size = (end - start) // view.storage.dtype.itemsize
    if view.end > size or view.offset > size:
        raise UnpicklingError(f"tensor {name!r} needs {view.end} elements, its storage has {size}")
    if view.overlaps and 0 not in view.shape:
        raise UnpicklingError(f"tensor {name!r} has elements that overlap: strides {list(view.strides)}")
