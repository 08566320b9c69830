"""What a running model adds for an adapter is what its weights would be with it, of every product that adapters may
change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.architecture.adaptation import Adaptable, AdapterReader, AdapterWeights
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from tests.convert.adapters.test_adapter_reader import product
from tests.families.forward import Forward
from tests.in_floats import InFloats
from tests.jaxengine.engines import prompt
from tests.random_adapters import random_adapter

pytestmark = pytest.mark.slow

IDS = prompt(24, seed=1)
LOUD = 20  # times what `random_adapter` makes


@dataclass(frozen=True)
class Loud:
    """An `AdapterReader` whose one adapter changes each of `targets`."""

    targets: Mapping[str, Adaptable]
    spec: ModelSpec

    def read(self, name: str) -> AdapterWeights:
        made = random_adapter(self.targets, self.spec, 4, seed=1)
        return replace(made, matrices={name: replace(each, b=LOUD * each.b) for name, each in made.matrices.items()})


@dataclass(frozen=True)
class Merged(InFloats):
    """`source` with what `reader` has added."""

    reader: Loud

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        values, added = self.source.read(name, ()), self.reader.read("").matrices
        if name in added:
            change = product(self.reader.targets[name], added[name])
            values = values + change.reshape(parameter_table(self.spec)[name].shape)
        return values[index]


def computed(source: ParameterSource, adapter: AdapterReader | None = None) -> np.ndarray:
    made = Forward(source, slots=1, adapter=(adapter, "") if adapter else None)
    prefilled = made.prefill(0, IDS[:-1], 0, len(IDS))
    return np.concatenate([prefilled, made.decode(0, IDS[-1], len(IDS) - 1, len(IDS))[None]])


@pytest.mark.parametrize(
    "name", ["deepseek_v3", "falcon_h1", "gemma4_e2b", "gemma4_moe", "lfm2_moe", "nemotron_h", "qwen3_next"]
)
def test_each_is_as_if_merged(name: str, zoo: Callable[[str], Path]) -> None:
    model = open_model(str(zoo(name)))
    assert model.adapters
    reader = Loud(model.adapters.targets, model.source.spec)
    expected = computed(Merged(model.source, reader))
    np.testing.assert_allclose(computed(model.source, reader), expected, atol=1e-3)
    assert np.abs(expected - computed(model.source)).max() > 0.1
