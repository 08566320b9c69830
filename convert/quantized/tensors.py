"""A quantised checkpoint's tensors as those of the model: each quantised module has a weight, read in floats."""

from collections.abc import Iterator

import numpy as np

from convert.config.config import Config
from convert.config.quantization import KEY
from convert.errors import CheckpointError
from convert.formats.quantized_matrix import Index, QuantizedMatrix
from convert.formats.tensors import Tensors
from convert.quantized.method import Method, Module
from convert.quantized.methods import method_of

QUANTIZED = (  # suffixes that only quantised modules have, also of layouts that are not supported
    *(".qweight", ".weight_packed", ".W_q", ".SCB", ".weight_scales", ".weight_scale_inv", ".weight_scale_2"),
    *(".weight_scale", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"),
    "._weight_qdata",
    *(".q_weight", ".trellis", ".Qidxs", ".codebooks"),  # EXL2, EXL3, QuIP#, AQLM
)


def with_weights(config: Config, tensors: Tensors) -> Tensors:
    """`tensors` with the weights that `config` says are quantised; the same where it says nothing.

    Raises:
        CheckpointError: an unsupported method, or tensors that are not as the method has them.
    """
    method = method_of(config)
    if method is None:
        if found := next((name for name in tensors if name.endswith(QUANTIZED)), None):
            lacks = f"is quantised, but {config.where} lacks a {KEY} that says how"
            raise CheckpointError(f"{tensors.where(found)}: tensor {found!r} {lacks}")
        return tensors
    quantized = QuantizedTensors(tensors, method)
    if not quantized.matrices:
        wanted = " or ".join(method.markers)
        raise config.error(KEY, f"says {method.name}, but no tensor ends in {wanted}")
    return quantized


class QuantizedTensors(Tensors):
    """`tensors` of which `method` wrote the quantised modules.

    Raises:
        CheckpointError: a module lacks a tensor, or has one of another shape or type.
    """

    def __init__(self, tensors: Tensors, method: Method) -> None:
        self._tensors = tensors
        names = {name.removesuffix(marker) for marker in method.markers for name in tensors if name.endswith(marker)}
        self._parts = {f"{name}{suffix}" for name in names for suffix in method.suffixes}
        both = sorted(f"{name}{method.weight}" for name in names if f"{name}{method.weight}" in tensors)
        if both and both[0] not in self._parts:
            problem = f"is beside a quantised matrix of the same module ({method.name})"
            raise CheckpointError(f"{tensors.where(both[0])}: tensor {both[0]!r} {problem}")
        self._stored = [name for name in tensors if name not in self._parts]
        self._method = method
        self.matrices = {f"{name}{method.weight}": method.open(Module(tensors, name)) for name in sorted(names)}

    def __contains__(self, name: object) -> bool:
        return name in self.matrices or (name in self._tensors and name not in self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._stored, *self.matrices))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.matrices[name].shape if name in self.matrices else self._tensors.shape(name)

    def dtype(self, name: str) -> str:
        return "float32" if name in self.matrices else self._tensors.dtype(name)

    def where(self, name: str) -> str:
        marks = (name.removesuffix(self._method.weight) + marker for marker in self._method.markers)
        return self._tensors.where(next(filter(self._tensors.__contains__, marks)) if name in self.matrices else name)

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name not in self.matrices:
            return self._tensors.read(name, view, index)
        return self.matrices[name].dense(view, index)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self.matrices.get(name)
