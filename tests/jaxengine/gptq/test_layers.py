"""Layers run over a text: each projection gets the inputs that transformers' own module gets."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
import torch
from jax import Array

from convert.original import original_of
from convert.source import open_model
from jaxengine.device import CPU
from jaxengine.gptq import layers
from jaxengine.gptq.layers import round_layers, shrunk
from jaxengine.gptq.solver import Settings
from jaxengine.ops import Ops
from jaxengine.sharding import make_mesh
from tests.conftest import Checkpoints
from tests.jaxengine.engines import prompt
from tests.tiny import load_reference

pytestmark = pytest.mark.slow

TEXTS = (prompt(64, seed=1), prompt(41, seed=2))  # the second is padded
FAMILIES = {  # with what is special
    "llama2_gqa": "",
    "gemma2": "windows, two norms around each branch, scaled embeddings",
    "bloom": "ALiBi, a norm behind the embedding",
    "phi": "parallel branches, part of a head rotates, biases",
    "opt_350m": "learned positions, a projected embedding, norms behind the branches",
}


class Untouched(NamedTuple):
    """In place of a rounded matrix: the same matrix, and the Hessian with which it would be rounded."""

    weight: Array
    hessian: Array

    def dense(self, settings: Settings) -> Array:
        return self.weight


@torch.no_grad()
def reference(directory: Path, modules: set[str]) -> dict[str, np.ndarray]:
    """Σ x xᵀ over the inputs x of each of transformers' `modules`."""
    model, sums = load_reference(directory), dict.fromkeys(modules, 0.0)

    def keep(name: str, inputs: torch.Tensor) -> None:
        flat = inputs.reshape(-1, inputs.shape[-1]).double()
        sums[name] = sums[name] + flat.T @ flat

    for name in modules:
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: keep(name, args[0]))
    for text in TEXTS:
        model(torch.tensor([text]), use_cache=False)
    return {name: total.numpy() for name, total in sums.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_hessians_are_those_of_transformers_inputs(
    name: str, tiny: Checkpoints, zoo: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = (tiny if name.startswith("llama") else zoo)(name)
    original = original_of(open_model(str(directory), cache_dir=tmp_path))
    monkeypatch.setattr(layers, "round_matrix", lambda weight, hessian, _: Untouched(weight, hessian))
    monkeypatch.setattr(layers, "shrunk", lambda hessian, _: hessian)
    made = dict(round_layers(original.source, TEXTS, Settings(), Ops("reference", make_mesh(1)), CPU))
    assert len(made) == 4 * original.source.spec.num_layers
    of_modules = {
        tensor.removesuffix(".weight"): np.asarray(made[each].hessian)
        for each in made
        for tensor in original.matrices(each)
    }
    for module, expected in reference(directory, set(of_modules)).items():
        scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected))) + 1e-6
        np.testing.assert_allclose(of_modules[module] / scale, expected / scale, atol=2e-4, err_msg=module)


def test_a_layer_that_overflows_is_an_error(tiny: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(str(tiny("llama")), cache_dir=tmp_path).source
    monkeypatch.setattr(layers, "round_matrix", lambda weight, hessian, _: Untouched(weight * jax.numpy.inf, hessian))
    with pytest.raises(ValueError, match="layer 0: its output on the calibration text is not finite"):
        list(round_layers(source, TEXTS[:1], Settings(), Ops("reference", make_mesh(1)), CPU))


def test_few_tokens_let_the_diagonal_speak() -> None:
    """Correlations that a short text shows are halved where it has as many tokens as there are inputs."""
    hessian = np.array([[4, 2], [2, 9]], np.float32)
    np.testing.assert_allclose(shrunk(hessian, 2), [[4, 1], [1, 9]])
    np.testing.assert_allclose(shrunk(hessian, 200_000), hessian, rtol=1e-4)
