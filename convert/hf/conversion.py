"""A checkpoint's tensors under the names, and in the shapes, of transformers' own module.

A checkpoint is often older than the module: names have changed, a matrix per expert has become one of all experts, a
fused projection has been split. transformers publishes its renamings and conversions. They run here on the tensors
that are read, and before that without data, which tells the shapes.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors


class ConvertedTensors(Tensors):
    """`Tensors` under the names of `module`; a tensor that the module has no place for keeps its own name.

    Raises:
        CheckpointError: two tensors make one parameter, or tensors do not fit their conversion.
    """

    def __init__(self, tensors: Tensors, module: Any) -> None:
        self._tensors = tensors
        self._stored: dict[str, str] = {}
        self._merged: dict[str, Conversion] = {}
        self._last: tuple[str, np.ndarray] = (
            "",
            np.empty(0),
        )  # what was converted last, if only a part of it was read: the rest will be
        groups: dict[str, Conversion] = {}
        for stored, name, converter, pattern in _renamed(tensors, module):
            if converter is not None:
                groups.setdefault(name, Conversion(converter, name, module, tensors)).add(pattern, stored)
            elif name in self._stored:
                raise CheckpointError(f"{tensors.where(stored)}: {self._stored[name]!r} and {stored!r} are one tensor")
            else:
                self._stored[name] = stored
        for group in groups.values():
            self._merged |= dict.fromkeys(group.shapes(), group)

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._merged

    def __iter__(self) -> Iterator[str]:
        return iter((*self._stored, *self._merged))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._merged[name].shapes()[name] if name in self._merged else self._tensors.shape(self._stored[name])

    def dtype(self, name: str) -> str:
        return self._tensors.dtype(self._first(name))

    def where(self, name: str) -> str:
        return self._tensors.where(self._first(name))

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name in self._merged:
            last, values = self._last
            whole = values if last == name else self._merged[name].read(name)
            part = whole.reshape(view)[index]
            self._last = (name, whole) if part.size < whole.size else ("", np.empty(0))
            return part
        return self._tensors.read(self._stored[name], view, index)

    def _first(self, name: str) -> str:
        return self._merged[name].sources[0][1] if name in self._merged else self._stored[name]


class Conversion:
    """One run of a converter of transformers: stored tensors in, one parameter or several out."""

    def __init__(self, converter: Any, target: str, module: Any, tensors: Tensors) -> None:
        self.sources: list[tuple[str, str]] = []  # the converter's pattern, and the tensor
        self._converter = converter
        self._target = target
        self._module = module
        self._tensors = tensors
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, pattern: str, stored: str) -> None:
        self.sources.append((pattern, stored))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter that the conversion yields."""
        if not self._shapes:
            made = self._convert(self._without_data)
            self._shapes = {name: tuple(each.shape) for name, each in made.items()}
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        return _to_numpy(self._convert(self._with_data)[name])

    def _convert(self, load: Callable[[str], Any]) -> dict[str, Any]:
        converter = deepcopy(self._converter)
        for pattern, stored in self.sources:
            converter.add_tensor(self._target, stored, pattern, partial(load, stored))
        try:
            made = converter.convert(self._target, model=self._module, config=self._module.config)
        except Exception as error:  # PyTorch has several kinds for shapes that do not fit each other
            first = self.sources[0][1]
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise CheckpointError(f"{self._tensors.where(first)}: {first!r} cannot be converted: {said}") from error
        return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}

    def _without_data(self, stored: str) -> Any:
        import torch

        dtype = getattr(torch, self._tensors.dtype(stored))
        return torch.empty(self._tensors.shape(stored), dtype=dtype, device="meta")

    def _with_data(self, stored: str) -> Any:
        shape = self._tensors.shape(stored)
        return _to_torch(self._tensors.read(stored, shape, tuple(slice(None) for _ in shape)))


def _renamed(tensors: Tensors, module: Any) -> Iterator[tuple[str, str, Any, str]]:
    """Each stored tensor: its name, its name in the module, and the converter and pattern that it matches, if any."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    wanted, transforms = module.state_dict(), get_model_conversion_mapping(module)
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    renamings = [each for each in transforms if not isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    for stored in sorted(tensors, key=dot_natural_key):
        name, pattern = rename_source_key(stored, renamings, converters, module.base_model_prefix, wanted)
        if name not in wanted and stored in wanted:  # the tensor has its new name already
            name, pattern = stored, None
        known = name in wanted and pattern is not None
        yield stored, name if name in wanted else stored, by_pattern[pattern] if known else None, pattern or ""


def _to_torch(values: np.ndarray) -> Any:
    """A copy, because PyTorch takes no read-only array; bf16 as 16-bit integers, because PyTorch takes no other."""
    import torch

    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(values))


def _to_numpy(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]
