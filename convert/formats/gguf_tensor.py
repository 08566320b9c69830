"""One tensor of a GGUF file, by rows and columns: in floats, or as the codes and scales that it is stored as."""

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from convert.errors import CheckpointError
from convert.formats.gguf_blocks import BLOCK_TYPES, BlockType, finite
from convert.formats.quantized_matrix import QuantizedMatrix
from jaxengine.architecture.parameters import empty
from jaxengine.architecture.weight_format import Component

FLOATS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
CHUNK = 2**18  # weights at once: what is between bytes and floats stays in a core's cache


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """`shape`: outermost axis first. Rows are all axes but the last, which is stored in blocks of one type."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int  # byte in `data`
    data: mmap.mmap
    where: str

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def end(self) -> int:
        size, octets = GGML_QUANT_SIZES[self.kind]
        return self.start + self.rows * (self.shape[-1] // size) * octets

    @property
    def in_blocks(self) -> bool:
        """Whether numbers share scales: the tensor is quantised."""
        return self.kind.name not in FLOATS

    def read(self, rows: slice, columns: slice) -> np.ndarray:
        """f32 [rows, columns]: contiguous ranges in floats; of F32 a view of the mapped file.

        Raises:
            CheckpointError: a scale or a minimum is not a finite number.
        """
        if not self.in_blocks:
            return self._plain()[rows, columns].astype(np.float32, copy=False)
        found = BLOCK_TYPES.get(self.kind.name)
        decode = found.dense if found else partial(_by_library, self.kind)
        return self._decoded(decode, GGML_QUANT_SIZES[self.kind][0], rows, columns)

    def whole(self) -> np.ndarray:
        """f32 [rows, columns], see `read`."""
        return self.read(slice(0, self.rows), slice(0, self.shape[-1]))

    def quantized(self) -> QuantizedMatrix | None:
        """The matrix as it is stored; None where it is a vector, or in floats, or can only be read in floats."""
        found = BLOCK_TYPES.get(self.kind.name)
        if found is None or len(self.shape) < 2:
            return None
        return QuantizedMatrix(self.shape, found.format, partial(self._component, found))

    def _component(self, type: BlockType, component: Component, rows: slice, columns: slice) -> np.ndarray:
        of_one = 1 if component == "values" else type.format.group  # inputs
        per_block = GGML_QUANT_SIZES[self.kind][0] // of_one
        return self._decoded(partial(type.component, component), per_block, rows, columns)

    def _plain(self) -> np.ndarray:
        """[rows, columns] in a type of `FLOATS`."""
        stored = np.frombuffer(self.data, FLOATS[self.kind.name], math.prod(self.shape), self.start)
        return np.require(stored, requirements="A").reshape(self.rows, -1)

    def _decoded(
        self, decode: Callable[[np.ndarray], np.ndarray], per_block: int, rows: slice, columns: slice
    ) -> np.ndarray:
        """[rows, columns], where `decode` makes `per_block` columns of each block."""
        size, octets = GGML_QUANT_SIZES[self.kind]
        stored = np.frombuffer(self.data, np.uint8, self.end - self.start, self.start)
        first, last = columns.start // per_block, -(-columns.stop // per_block)
        blocks = stored.reshape(self.rows, -1, octets)[rows, first:last]
        step = max(1, CHUNK // ((last - first) * size))
        whole = np.empty(0)
        for at in range(0, len(blocks), step):
            part = blocks[at : at + step]
            try:
                decoded = decode(part.reshape(-1, octets)).reshape(len(part), -1)
            except ValueError as error:
                raise CheckpointError(f"{self.where}: tensor {self.name!r} {error}") from error
            if at == 0:
                whole = empty((len(blocks), decoded.shape[1]), decoded.dtype)
            whole[at : at + step] = decoded
        return whole[:, columns.start - first * per_block : columns.stop - first * per_block]


def _by_library(kind: GGMLQuantizationType, blocks: np.ndarray) -> np.ndarray:
    """f32. All blocks are one row to the library, which takes 16 rows at a time: 30 M weights/s if they are short."""
    with np.errstate(invalid="ignore"):  # of scales that are refused
        return finite(dequantize(blocks.reshape(1, -1), kind))
