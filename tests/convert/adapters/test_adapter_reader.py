"""What an adapter adds to a running model is what PEFT merges with it, matrix by matrix of the parameter table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.source import OpenModel, open_model
from jaxengine.architecture.adaptation import Adaptable, AdapterWeights, LowRank
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from tests.convert.adapters.test_merged_tensors import FAMILIES, OPTIONS, TARGETS, opened
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.tiny_adapter import write_adapter

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
# PEFT refuses Mamba's out_proj, which transformers' own kernels pass by.
MODULES = {**TARGETS, "mamba": ["in_proj", "x_proj", "dt_proj"]}
ADDED = ("patterns", "rslora", "some layers", "regex")
# Whose projections are fused in transformers too, so that one module changes all of q, k and v.
FUSED = ("bloom", "falcon_40b", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi3")


def product(adaptable: Adaptable, matrix: LowRank) -> np.ndarray:
    """f32 [out…, in]: what is added, by the definition of `jaxengine.architecture.adaptation`."""
    if adaptable.axis is None:
        return matrix.b @ matrix.a[0]
    b = np.moveaxis(matrix.b, adaptable.axis, 0)  # [units, …, rank]
    made = [rows @ matrix.a[part] for rows, part in zip(b, adaptable.parts, strict=True)]
    return np.moveaxis(np.stack(made), 0, adaptable.axis)


def assert_adds_up(base: OpenModel, weights: AdapterWeights, expected: ParameterSource) -> None:
    """`base` with `weights` is `expected`."""
    assert base.adapters and weights.matrices
    for name, parameter in parameter_table(base.source.spec).items():
        values = base.source.read(name, ())
        if name in weights.matrices:
            change = product(base.adapters.targets[name], weights.matrices[name])
            assert change.any()
            values = values + change.reshape(parameter.shape)
        np.testing.assert_allclose(values, expected.read(name, ()), atol=3e-5, err_msg=name)


def checkpoint(name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints) -> Path:
    kind = seq2seq if name in ("t5_own_head", "bart") else tiny if name.startswith("llama") else zoo
    return kind(name)


@pytest.mark.parametrize("name", (*FAMILIES, "codegen", "mamba"))
def test_it_is_peft_s_of_every_linear_module(
    name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints, tmp_path: Path
) -> None:
    model = checkpoint(name, tiny, zoo, seq2seq)
    write_adapter(tmp_path, model, target_modules=MODULES.get(name, "all-linear"))
    base = open_model(str(model))
    assert base.adapters
    weights = base.adapters.read(str(tmp_path / "adapter"))
    assert_adds_up(base, weights, opened(tmp_path / "merged"))
    assert weights.rank == 4
    qkv = base.adapters.targets["layers.0.in_proj" if name == "mamba" else "layers.0.qkv"]
    assert (qkv.modules == 1) == (name in (*FUSED, "codegen", "mamba"))


@pytest.mark.parametrize("option", ADDED)
def test_it_is_peft_s_with_every_option(option: str, tiny: Checkpoints, tmp_path: Path) -> None:
    model = tiny("llama_bias_hd")
    write_adapter(tmp_path, model, **OPTIONS[option])
    base = open_model(str(model))
    assert base.adapters
    weights = base.adapters.read(str(tmp_path / "adapter"))
    assert_adds_up(base, weights, opened(tmp_path / "merged"))


@pytest.mark.parametrize("name", ["llama2_gqa", "qwen2_moe", "gpt_bigcode", "t5"])
def test_a_model_of_a_gguf_file_takes_the_adapters_of_its_checkpoint(
    name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints, tmp_path: Path
) -> None:
    model = seq2seq(name) if name == "t5" else checkpoint(name, tiny, zoo, seq2seq)
    file = write_tiny_gguf(model, tmp_path / "model.gguf")
    write_adapter(tmp_path, model)
    base, stored = open_model(str(model)), open_model(str(file), cache_dir=tmp_path / "cache")
    assert base.adapters and stored.adapters
    assert stored.adapters.targets == base.adapters.targets
    weights = stored.adapters.read(str(tmp_path / "adapter"))
    assert weights.digest == base.adapters.read(str(tmp_path / "adapter")).digest
    assert_adds_up(stored, weights, opened(tmp_path / "merged"))
