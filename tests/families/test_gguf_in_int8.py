"""A GGUF file in int8 on a CPU: also its embedding and head, however the processor multiplies it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.formats.gguf import GgufFile
from convert.llama_cpp.model import open_gguf
from jaxengine.device import CPU, Int8Products
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.forward import Forward
from tests.in_floats import InFloats
from tests.jaxengine.engines import prompt

pytestmark = pytest.mark.slow

IDS = prompt(24, seed=1)


class Held(InFloats):
    """`source`, read as what a CPU holds of it stands for."""

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return load_parameters(self.source, make_mesh(1), "float32", CPU, lambda *_: None)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        held = self.parameters[name]
        return np.asarray(held.dense("float32") if isinstance(held, Weight) else held)[index]


@pytest.mark.parametrize("name", ["llama2_gqa", "llama"])
@pytest.mark.parametrize("int8_as", ["f32", "bf16", "integers"])
def test_a_model_computes_with_what_is_held(
    name: str, int8_as: Int8Products, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    source = open_gguf(GgufFile(write_tiny_gguf(tiny(name), tmp_path / "x.gguf", kind=gguf.GGMLQuantizationType.Q8_0)))
    device = replace(CPU, int8_products=int8_as)
    ours = Forward(source, device=device).prefill(0, IDS, 0, len(IDS))
    expected = Forward(Held(source), device=device).prefill(0, IDS, 0, len(IDS))
    np.testing.assert_allclose(ours, expected, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_has_a_row_for_each_token_is_held_in_int8(dtype: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "x.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    source = open_gguf(GgufFile(path))
    held = load_parameters(source, make_mesh(1), dtype, CPU, lambda *_: None)
    for name in ("embedding", "head"):
        assert held[name].values.dtype == "int8"
    rows = held["embedding"].rows(np.array([3, 0, 7]))
    assert rows.dtype == dtype
    exact = source.read("embedding", ())[[3, 0, 7]]
    np.testing.assert_allclose(np.asarray(rows, np.float32), exact, atol=np.abs(exact).max() / 100)
