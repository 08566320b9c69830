"""A quantised source of parameters that is read in floats."""

from dataclasses import dataclass

import numpy as np

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.architecture.weight_format import StoredWeight


@dataclass(frozen=True)
class InFloats:
    """`source` as if it held floats. What a CPU is given quantised it would round to int8."""

    source: ParameterSource

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.source.read(name, index)

    def stored(self, name: str) -> StoredWeight | None:
        return None
