"""The tensors of a repository on the Hub whose weights are not here: their headers, and what little else must be known.

A few values are read before any weight is: zero points, scales, a matrix's order. Layers are alike, so one tensor
stands for all those of its name, but for numbers, its shape and its type; and one that is large stands empty. So this
is for plans. What is computed from it would be nonsense.
"""

import re
import threading
from collections.abc import Iterable, Iterator

import numpy as np

from convert.errors import CheckpointError
from convert.formats.safetensors import PREFIX, Entry, header_bytes, read_header
from convert.formats.tensors import Index, Tensors
from convert.origin.hub import RemoteFile

FIRST = 100_000  # bytes of a file that are fetched at once: most headers are shorter, and a model may have 191 files
LARGE = 16 << 20  # bytes of a tensor


class RemoteTensors(Tensors):
    """The tensors of safetensors `files`.

    Raises:
        CheckpointError: a file cannot be had, or has a header that `SafetensorsFile` would refuse, or a tensor of
            another one.
    """

    def __init__(self, files: Iterable[RemoteFile]) -> None:
        self._entries: dict[str, tuple[RemoteFile, Entry]] = {}
        for file in files:
            for name, entry in _entries(file).items():
                if name in self._entries:
                    raise CheckpointError(f"{file.name}: tensor {name!r} is also in {self.where(name)}")
                self._entries[name] = file, entry
        self._fetched: dict[tuple[object, ...], np.ndarray] = {}
        self._lock = threading.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name][1].shape

    def dtype(self, name: str) -> str:
        return self._entries[name][1].dtype.name

    def where(self, name: str) -> str:
        return self._entries[name][0].name

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        part: np.ndarray = self._one_alike(name).reshape(view)[index]
        return part.copy()

    def _one_alike(self, name: str) -> np.ndarray:
        """All of a tensor like `name`, in its shape."""
        file, entry = self._entries[name]
        alike = (re.sub(r"\d+", "#", name), entry.shape, entry.dtype)
        with self._lock:
            if alike not in self._fetched:
                self._fetched[alike] = _fetch(file, entry)
            return self._fetched[alike]


def _entries(file: RemoteFile) -> dict[str, Entry]:
    start, size = file.read(0, FIRST)
    needed = PREFIX + header_bytes(start[:PREFIX], size, file.name)
    if needed > len(start):
        start += file.read(len(start), needed)[0]
    return read_header(start[:PREFIX], start[PREFIX:needed], size, file.name)


def _fetch(file: RemoteFile, entry: Entry) -> np.ndarray:
    if entry.end == entry.start or entry.end - entry.start > LARGE:
        return np.zeros(entry.shape, entry.dtype)
    octets, _ = file.read(entry.start, entry.end)
    return np.frombuffer(octets, np.uint8).view(entry.dtype).reshape(entry.shape)
