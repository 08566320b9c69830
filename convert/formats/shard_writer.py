"""Tensors written as they come: safetensors files of a bounded size, and their index if there are several."""

import json
from pathlib import Path

import numpy as np

from convert.formats.safetensors import SINGLE_FILE, encode_header

LIMIT = 2 * 10**9  # bytes that wait in memory for their file


class ShardWriter:
    """Writes `model.safetensors`, or files that its index names, into `directory`. `close` completes them."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._waiting: dict[str, np.ndarray] = {}
        self._shards: list[list[str]] = []  # names of tensors
        self._bytes = 0

    def add(self, name: str, tensor: np.ndarray) -> None:
        """Write a tensor, now or later; it must not change."""
        waiting = sum(each.nbytes for each in self._waiting.values())
        if self._waiting and waiting + tensor.nbytes > self._limit:
            self._write()
        self._waiting[name] = tensor
        self._bytes += tensor.nbytes

    def close(self) -> None:
        """Nothing may be added afterwards."""
        self._write()
        count = len(self._shards)
        if count == 1:
            self._part(0).rename(self._directory / SINGLE_FILE)
            return
        placed: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            file = f"model-{number + 1:05}-of-{count:05}.safetensors"
            self._part(number).rename(self._directory / file)
            placed |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._bytes}, "weight_map": placed}
        (self._directory / f"{SINGLE_FILE}.index.json").write_text(json.dumps(index, indent=1))

    def _part(self, number: int) -> Path:
        return self._directory / f".part-{number}"

    def _write(self) -> None:
        path = self._part(len(self._shards))
        header = encode_header({name: (each.dtype.name, each.shape) for name, each in self._waiting.items()}, "pt")
        with path.open("wb") as file:
            file.write(header)
            for tensor in self._waiting.values():
                file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        self._shards.append(list(self._waiting))
        self._waiting.clear()
